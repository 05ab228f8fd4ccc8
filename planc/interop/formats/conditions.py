"""Evaluates tests of shell scripts, such as `[ A = B ]` or `[[ -n A ]]`, if the compared texts are known."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from fnmatch import fnmatchcase

from planc.diag.fast_dataclass import dataclass


@dataclass(frozen=True)
class Operand:
    """A word of a test. `known` is True if no part of its text depends on the shell."""

    text: str
    known: bool = True
    quoted: bool = False


MOST_LEVELS = 20
"""Maximum nesting of brackets and negations."""
MOST_PATTERN = 1_000
"""Maximum length of a pattern that is compared: `fnmatch` takes the square of it."""
_NUMBERS = {"-eq": operator.eq, "-ne": operator.ne, "-gt": operator.gt}
_NUMBERS |= {"-lt": operator.lt, "-ge": operator.ge, "-le": operator.le}


def holds(words: Sequence[Operand], patterns: bool = False, level: int = 0) -> bool | None:
    """True if the test `words` succeeds, False if it fails; None if only the shell knows.

    `patterns` is True for `[[ ]]`, where the right side of `==` may be a pattern. `level` is the depth of nesting.
    """
    if level > MOST_LEVELS:
        return None
    for joint, either in (("||", True), ("-o", True), ("&&", False), ("-a", False)):
        parts = _split(words, joint)
        if len(parts) > 1:
            values = [holds(part, patterns, level + 1) for part in parts]
            return either if either in values else None if None in values else not either
    if words and words[0].text == "!" and not words[0].quoted:
        value = holds(words[1:], patterns, level + 1)
        return None if value is None else not value
    if len(words) > 2 and words[0].text == "(" and words[-1].text == ")":
        return holds(words[1:-1], patterns, level + 1)
    return _compared(words, patterns) if all(word.known for word in words) else None


def _split(words: Sequence[Operand], joint: str) -> list[Sequence[Operand]]:
    parts: list[Sequence[Operand]] = []
    depth = start = 0
    for index, word in enumerate(words):
        depth += 0 if word.quoted else {"(": 1, ")": -1}.get(word.text, 0)
        if word.text == joint and not word.quoted and depth == 0:
            parts.append(words[start:index])
            start = index + 1
    return [*parts, words[start:]]


def fits(text: str, pattern: str) -> bool | None:
    """Returns True if the shell's `pattern` matches `text`; None for patterns too long to compile in linear time."""
    return fnmatchcase(text, pattern) if len(pattern) <= MOST_PATTERN else None


def _compared(words: Sequence[Operand], patterns: bool) -> bool | None:
    texts = [word.text for word in words]
    if len(texts) == 1:
        return texts[0] != ""
    if len(texts) == 2 and texts[0] in ("-n", "-z"):
        return (texts[1] == "") == (texts[0] == "-z")
    if len(texts) != 3:
        return None
    a, how, b = texts
    if how in ("=", "==", "!="):
        same = fits(a, b) if patterns and not words[2].quoted else a == b
        return None if same is None else same == (how != "!=")
    numbers = [text.strip().isdecimal() and len(text) < 20 for text in (a, b)]
    return bool(_NUMBERS[how](int(a), int(b))) if how in _NUMBERS and all(numbers) else None
