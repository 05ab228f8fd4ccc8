"""Tracks the values of a script's variables through its branches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from planc.diag.span import Span
from planc.interop.document import UnreadableError
from planc.interop.formats.words import ShellWord, Written

MAX_EXPANDED = 100_000
"""Maximum length of a variable's value (characters)."""


class VariableValue:
    """The value of a shell variable. After `+=`, `prev` is the previous value, and `own` are only the added words.

    `certain` is False if only the shell knows whether the variable has this value. `written` are the script's words
    that assign the value; `used` are the values of the variables in those words.
    """

    def __init__(
        self,
        own: Sequence[ShellWord],
        text: str = "",
        *,
        array: bool = False,
        prev: VariableValue | None = None,
        certain: bool = True,
        known: bool = True,
        written: Sequence[Written] = (),
        used: Sequence[VariableValue] = (),
    ) -> None:
        self.own, self.own_text, self.array, self.prev = own, text, array, prev
        self.certain: bool = certain and (prev is None or prev.certain)
        self.known: bool = known and (prev is None or prev.known)
        """True if no part of it depends on the shell."""
        self.written, self.used = tuple(written), tuple(used)
        self._words: list[ShellWord] | None = None
        self._text: str | None = None
        self.size: int = sum(len(w.text) + 1 for w in own) + len(text) + (prev.size if prev else 0)

    def chain(self, end: VariableValue | None = None) -> list[VariableValue]:
        """Returns the values that `+=` joined to this value, oldest first. With `end`, only those after `end`."""
        found: list[VariableValue] = []
        one: VariableValue | None = self
        while one is not None and one is not end:
            found.append(one)
            one = one.prev
        return found[::-1]

    def grew_from(self, other: VariableValue | None) -> bool:
        """True if this value is `other`, or extends `other` by `+=`."""
        one: VariableValue | None = self
        while one is not None and one is not other:
            one = one.prev
        return one is not None

    def words(self) -> list[ShellWord]:
        """Returns all words of the value, including those before a `+=`."""
        if self._words is None:
            self._words = [word for one in self.chain() for word in one.own]
        return self._words

    def text(self) -> str:
        """Returns the value as it expands in quotes; words of an array are joined by blanks."""
        if self._text is None:
            parts = [w.text for w in self.words()] if self.array else [one.own_text for one in self.chain()]
            self._text = (" " if self.array else "").join(parts)
        return self._text


UNSET = VariableValue((), known=True)
"""Value of a variable in a branch that does not set it, if nothing set it before."""


class Variables:
    """The variables of a script. Between `fork` and `back`, changes are recorded so that they can be undone."""

    def __init__(self, given: dict[str, VariableValue]) -> None:
        self._values = dict(given)
        self._changed: list[dict[str, VariableValue | None]] = []
        self.exported: set[str] = set(given)

    def get(self, name: str) -> VariableValue | None:
        """Returns the value of `name`; None if the script has not set it."""
        return self._values.get(name)

    def set(self, name: str, value: VariableValue | None, place: Span) -> None:
        """Sets the variable `name` to `value`; None unsets it. Raises UnreadableError at `place` for a value that is
        too long."""
        if value is not None and value.size > 4 * MAX_EXPANDED:
            raise UnreadableError("a variable grows beyond reason", place)
        if self._changed:
            self._changed[-1].setdefault(name, self._values.get(name))
        if value is None:
            self._values.pop(name, None)
        else:
            self._values[name] = value

    def fork(self) -> None:
        """Starts a branch of the script: `back` will undo the changes that follow."""
        self._changed.append({})

    def back(self) -> dict[str, VariableValue | None]:
        """Undoes the changes since `fork`, and returns the undone value of each variable (None: unset)."""
        changed = self._changed.pop()
        made = {name: self._values.get(name) for name in changed}
        for name, before in changed.items():
            if before is None:
                self._values.pop(name, None)
            else:
                self._values[name] = before
        return made

    def merge(self, worlds: Sequence[dict[str, VariableValue | None]], place: Span, *, all_of_them: bool) -> None:
        """Sets each variable that some branch changed to the merge of its values after the branches.

        `worlds` has the changed variables of each branch. Unless `all_of_them`, the previous value is merged too.
        """
        for name in dict.fromkeys(name for world in worlds for name in world):
            before = self._values.get(name)
            values = [world.get(name, before) for world in worlds] + ([] if all_of_them else [before])
            self.set(name, either(values, before), place)


def either(values: Sequence[VariableValue | None], before: VariableValue | None) -> VariableValue:
    """Returns the merge of `values`, which a variable has after different branches. Words become uncertain unless all
    values are equal; words of `before` stay as they are if all values extend it by `+=`."""
    found = list(dict.fromkeys(value or UNSET for value in values))
    alike = all(v.certain and v.known for v in found) and len({v.size for v in found}) == 1
    if len(found) == 1 or (alike and len({(v.text(), v.array) for v in found}) == 1):
        return found[0]
    common = before if all(value.grew_from(before) for value in found) else None
    words: list[ShellWord] = []
    for value in found:
        more = [replace(word, certain=False) for one in value.chain(common) for word in one.own]
        words += _flags_beside(words, more) if words else more
    text = " ".join(word.text for word in words)
    array = any(value.array for value in found)
    return VariableValue(
        words, text, array=array, prev=common, certain=False, used=[v for v in found if v is not common]
    )


def _flags_beside(words: Sequence[ShellWord], more: Sequence[ShellWord]) -> list[ShellWord]:
    """Returns the flags of `more` that are not among `words`, each with its values."""
    there, kept, found = {word.text for word in words}, False, []
    for word in more:
        kept = word.text not in there if word.text.startswith("-") else kept
        found += [word] if kept else []
    return found


def closure(values: Sequence[VariableValue]) -> Iterator[VariableValue]:
    """Yields `values` and, recursively, the values that they use or extend, each once."""
    seen: set[VariableValue] = set()
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        yield value
        waiting += [*value.used, *([value.prev] if value.prev else [])]
