"""Suggests the legal words nearest in spelling to an unknown word ("did you mean")."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from planc.diag.diagnostic import Edit, Fix
from planc.diag.span import Span

MOST_COMPARED = 1_000
"""Legal words that are compared with what was written; of more, those of about its length that begin like it."""
MOST_GUESSES = 100
"""Mistakes of one file for which the words nearest in spelling are looked up: no more of one code are shown."""


def nearest(word: str, legal: Iterable[str], most: int = 3) -> list[str]:
    """Return at most `most` of the `legal` words that are similar to `word`, the most similar first: `llama3_8b` for
    `llama3-8b`."""
    return list(_nearest(word, _comparable(word, tuple(legal)), most)) if len(word) <= 60 else []


def _comparable(word: str, legal: tuple[str, ...]) -> tuple[str, ...]:
    if len(legal) <= MOST_COMPARED:
        return legal
    alike = [w for w in legal if w[:1] == word[:1] and abs(len(w) - len(word)) <= 2]
    return tuple(alike[:MOST_COMPARED])


def spelling_fix(span: Span, word: str, legal: Iterable[str]) -> Fix | None:
    """Return an edit that replaces `word` at `span` by the nearest word of `legal`; None if none is near.

    The fix is safe (`Fix.safe`) if exactly one legal word differs by a single typing error.
    """
    words = list(legal)
    near = nearest(word, words, 1)
    if not near:
        return None
    slips = [w for w in words if abs(len(w) - len(word)) <= 1 and _one_slip(word.lower(), w.lower())]
    return Fix(f"write `{near[0]}`", (Edit(span, near[0]),), safe=slips == near)


def _one_slip(one: str, other: str) -> bool:
    """True if the two words differ by one typing error: a letter that is missing, added, replaced, or swapped with the
    next one. False for words of one or two letters, or with different digits: those are different names."""
    digits = [[c for c in word if c.isdigit()] for word in (one, other)]
    if abs(len(one) - len(other)) > 1 or min(len(one), len(other)) < 3 or digits[0] != digits[1]:
        return False
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    a, b = one[at:], other[at:]
    swapped = len(a) > 1 and a[1::-1] == b[:2] and a[2:] == b[2:]
    return a[1:] == b[1:] or a[1:] == b or a == b[1:] or swapped


@lru_cache(maxsize=1024)
def _nearest(word: str, legal: tuple[str, ...], most: int) -> tuple[str, ...]:
    """Return the nearest legal words. The result is cached, because a file may have the same mistake in a thousand
    lines."""
    from difflib import get_close_matches

    same = [w for w in legal if _normalized(w) == _normalized(word)]
    by_lower = {w.lower(): w for w in legal}
    found = get_close_matches(word.lower(), by_lower, n=most, cutoff=0.6)
    return tuple(dict.fromkeys([*same, *(by_lower[f] for f in found)]))[:most]


def _normalized(word: str) -> str:
    """Return the word in lower case, without the characters that join its components."""
    return re.sub(r"[^0-9a-z]", "", word.lower()) or word
