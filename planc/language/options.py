"""Reads the options of a method, such as `ring(balance = headtail)` or `float8(rowwise)`."""

from __future__ import annotations

from planc.diag.fast_dataclass import dataclass
from planc.language.draft import Draft
from planc.syntax.tree import Node, Word

Value = int | float | str


@dataclass(frozen=True)
class Option:
    """The legal values of an option: the `words`. Without words: a decimal fraction if `fraction`, else an integer of
    at least `minimum`."""

    words: tuple[str, ...] = ()
    fraction: bool = False
    minimum: int = 1


def method_name(method: Node, legal: tuple[str, ...], what: str, draft: Draft) -> str | None:
    """Return the name of `method`, such as `ring` in `as ring(...)`; None (reported) if it is not in `legal`.

    `what` describes the legal names in the message, such as "a way to overlap".
    """
    return draft.one_of(method.words()[0], legal, what)


def read_options(method: Node, legal: dict[str, Option], draft: Draft) -> dict[str, Value] | None:
    """Return the values of the options of `method`, by name. `legal` has all options by name; in `float8(rowwise)` the
    name is omitted and follows from the word.

    Returns None (reported) if an option is unknown, given twice or has an illegal value.
    """
    args = method.node("args")
    found: dict[str, Value] = {}
    for arg in args.parts if args else ():
        named = isinstance(arg, Node) and arg.kind == "named"
        name = _name(arg, legal, draft) if named else _option_of_value(arg, legal, method, draft)
        if name is None:
            return None
        if name in found:
            draft.report("E0108", arg.span, f"`{name}` is given twice")
            return None
        value = _value(arg.parts[1] if isinstance(arg, Node) and named else arg, legal[name], name, draft)
        if value is None:
            return None
        found[name] = value
    return found


def _name(arg: Node | Word, legal: dict[str, Option], draft: Draft) -> str | None:
    assert isinstance(arg, Node)
    word = arg.parts[0]
    assert isinstance(word, Word)
    return draft.one_of(word, legal, "an option here")


def _option_of_value(arg: Node | Word, legal: dict[str, Option], method: Node, draft: Draft) -> str | None:
    """Return the name of the option that has the word `arg` among its values; None (reported) if there is none."""
    word = _single_word(arg)
    words = {w: name for name, option in legal.items() for w in option.words}
    if word is None:
        names = ", ".join(f"{name} = ..." for name in legal) or "none"
        draft.report("E0108", arg.span, f"`{method.words()[0].text}` takes named options: {names}")
        return None
    known = draft.one_of(word, words, "an option here")
    return words[known] if known else None


def _value(part: Node | Word, option: Option, name: str, draft: Draft) -> Value | None:
    if not option.words:
        return draft.quantity(part, "count") if option.fraction else draft.integer(part, minimum=option.minimum)
    word = _single_word(part)
    if word is None:
        draft.report("E0108", part.span, f"`{name}` is one of {', '.join(option.words)}")
        return None
    return draft.one_of(word, option.words, f"a value of `{name}`")


def _single_word(part: Node | Word) -> Word | None:
    words = [part] if isinstance(part, Word) else list(part.all_words())
    return words[0] if len(words) == 1 and words[0].kind in ("NAME", "METHOD") else None
