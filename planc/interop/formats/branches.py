"""Branches and loops of shell scripts: which commands are run, which are not, and which only the shell knows.

`if` is decided where its condition compares texts that the script itself sets; all other branches, and what stands in
loops and `case`, are read with a mark: a flag that stands only there is not certain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planc.interop.formats.words import ShellWord

_OPENING = ("if", "for", "while", "until", "case", "select")
_CLOSING = ("fi", "done", "esac")


class Branches:
    """The open branches at a place of a script. Each is True where it is run, False where not, None where unknown."""

    def __init__(self) -> None:
        self._open: list[bool | None] = []
        self._earlier: list[bool | None] = []
        """For each open `if`: True once a branch of it is run, None once that is unknown."""
        self._condition: list[tuple[bool | None, str]] | None = None

    @property
    def reached(self) -> bool:
        """False in a branch that is not run, and in the condition of one."""
        return False not in self._open and self._condition is None

    def marked(self, words: Sequence[ShellWord]) -> list[ShellWord]:
        """The words, not certain where an open branch is unknown."""
        return [replace(w, certain=False) for w in words] if None in self._open else list(words)

    def inside(self, words: list[ShellWord], expanded: list[ShellWord], end: str) -> list[ShellWord]:
        """The command without the words that open and close branches; `end` is what ends it."""
        while words and not words[0].quoted:
            word = words[0].text
            if word in _OPENING:
                self._start(word)
            elif word == "elif" and self._open:
                self._condition = []
            elif word == "else" and self._open:
                self._enter(True)
            elif word == "then" and self._open:
                self._then()
            elif word in _CLOSING and self._open:
                self._open.pop()
                self._earlier.pop()
                self._condition = None
                return []
            elif word not in ("do", "{", "}"):
                break
            if word in ("for", "case", "select"):
                return []
            words, expanded = words[1:], expanded[1:]
        if self._condition is not None and words:
            self._condition.append((_holds([w.text for w in expanded]), end))
        return words

    def _start(self, word: str) -> None:
        self._open.append(None)
        self._earlier.append(False)
        self._condition = [] if word == "if" else None

    def _then(self) -> None:
        value: bool | None = None
        for index, (holds, _) in enumerate(self._condition or ()):
            joined = self._condition[index - 1][1] if index and self._condition else ""
            value = _both(value, holds) if joined == "&&" else _either(value, holds) if joined == "||" else holds
        self._condition = None
        self._enter(value)

    def _enter(self, value: bool | None) -> None:
        """Into a branch with this condition: it is run where no earlier one is."""
        earlier = self._earlier[-1]
        self._open[-1] = _both(value, None if earlier is None else not earlier)
        self._earlier[-1] = _either(earlier, self._open[-1])


def _both(a: bool | None, b: bool | None) -> bool | None:
    return False if False in (a, b) else None if None in (a, b) else True


def _either(a: bool | None, b: bool | None) -> bool | None:
    return True if True in (a, b) else None if None in (a, b) else False


def _holds(words: list[str]) -> bool | None:
    """The value of `[ A = B ]`, `[[ -n A ]]` and the like; None where the shell has to say."""
    if len(words) < 3 or words[0] not in ("[", "[[", "test") or any("$" in w or "`" in w or "*" in w for w in words):
        return None
    inner = words[1:-1] if words[0] != "test" else words[1:]
    if inner[:1] == ["!"]:
        value = _holds(["test", *inner[1:]])
        return None if value is None else not value
    if len(inner) == 2 and inner[0] in ("-n", "-z"):
        return (inner[1] == "") == (inner[0] == "-z")
    if len(inner) == 3 and inner[1] in ("=", "==", "-eq"):
        return inner[0] == inner[2]
    if len(inner) == 3 and inner[1] in ("!=", "-ne"):
        return inner[0] != inner[2]
    if len(inner) == 3 and inner[1] in ("-gt", "-lt", "-ge", "-le") and inner[0].isdigit() and inner[2].isdigit():
        a, b = int(inner[0]), int(inner[2])
        return {"-gt": a > b, "-lt": a < b, "-ge": a >= b, "-le": a <= b}[inner[1]]
    return None
