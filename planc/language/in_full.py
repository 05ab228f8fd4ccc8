"""Writes a plan in full: layouts are expanded, and defaults, numbers and hardware are written out.

The resulting text has no `use`, `let` or `import`, so it means the same in any folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from planc.diag.fast_dataclass import dataclass
from planc.diag.quoting import python_comment
from planc.ir.plan import Plan
from planc.language.build import Built
from planc.language.defaults import completed, defaults
from planc.language.precedence import without_subjects
from planc.syntax import parse_text
from planc.syntax.fmt import VERB_WIDTH, format_text
from planc.syntax.tree import Sentence

DEFAULT = "default"
WIDTH = 80
"""Columns after which a hardware declaration continues on the next line."""


@dataclass(frozen=True)
class Row:
    """A sentence of the full text. `via` says where it comes from: the text of a `use` sentence, the name of a hardware
    file, `default` for an omitted sentence, or "" for a sentence of the plan itself."""

    text: str
    via: str = ""
    declares: bool = False
    """True for a hardware declaration."""


def in_full(built: Built, plan: Plan | None) -> Iterator[Row]:
    """Yield the sentences of a plan file in the file's order, then the omitted sentences, then the hardware
    declarations.

    Args:
        built: the result of reading the file.
        plan: the resulting plan; None for a file with mistakes, whose defaults are unknown.
    """
    for sentence in built.sentences:
        known = _known(sentence, plan)
        if known is None or known.verb == "let":
            continue
        text = _with_numbers(known, built)
        whole = completed(text, plan) if plan else text
        added = DEFAULT + whole.removeprefix(text) if whole != text else ""
        yield Row(whole, known.via.text if known.via else added)
    if plan is not None:
        yield from (Row(text, DEFAULT) for text in defaults(plan))
    priced = any(s.verb == "price" for s in built.sentences)
    for sentence in built.machine:
        if sentence.verb != "price" or not priced:
            yield Row(_with_numbers(sentence, built), sentence.span.file, declares=True)


def as_text(name: str, rows: Iterable[Row]) -> str:
    """Return the text of a plan file with the sentences `rows`, below the header `plan NAME` unless `name` is ""."""
    lines, file = [f"plan {name}"] if name else [], ""
    for row in rows:
        if row.declares and row.via != file:
            file = row.via
            lines += ["", f"# {python_comment(file)}"]
        lines.append(_wrapped(row.text) if row.declares else f"{row.text}  # {row.via}" if row.via else row.text)
    return format_text("\n".join(lines) + "\n")


def _known(sentence: Sentence, plan: Plan | None) -> Sentence | None:
    """Return the sentence. In a sentence from a layout, dims that the model does not have are left out; None if none
    remains."""
    if sentence.via is None or plan is None or sentence.verb not in ("shard", "replicate"):
        return sentence
    unknown = {w.text for w in sentence.names(0)} - {"batch", "sequence", *plan.model.sizes}
    return without_subjects(sentence, unknown)


def _with_numbers(sentence: Sentence, built: Built) -> str:
    """Return the sentence with the values of `let` names, and without `on TARGET:`."""
    text = sentence.text
    numbers = [built.numbers.get(word.span) for word in sentence.node.all_words()]
    if any(number is not None for number in numbers):
        (again,) = parse_text(f"plan x\n{text}", "").sentences  # its words have their places in this very text
        places = [(w.span.column, w.span.end_column) for w in again.node.all_words()]
        for (begin, end), number in sorted(zip(places, numbers, strict=True), key=lambda pair: pair[0], reverse=True):
            text = text if number is None else f"{text[: begin - 1]}{number}{text[end - 1 :]}"
    return text.partition(":")[2].strip() if sentence.target else text


def _wrapped(text: str) -> str:
    verb, _, rest = text.partition(" ")
    lines, line, depth = [], f"{verb:<{VERB_WIDTH}} ", 0
    for piece in re.findall(r'"[^"]*"|[(\[]|[)\]]|, |[^"()\[\],]+|.', rest):
        depth += (piece in "([") - (piece in ")]")
        if piece == ", " and depth and len(line) > WIDTH:
            lines.append(f"{line},")
            line = " " * (VERB_WIDTH + 1)
        else:
            line += piece
    return "\n".join([*lines, line])
