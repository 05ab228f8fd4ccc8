"""Did you mean: the legal words nearest to what was written."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache


def nearest(word: str, legal: Iterable[str], most: int = 3) -> list[str]:
    """Legal words that look like `word`, best first: `llama3-8b` is nearest to `llama3_8b`."""
    return list(_nearest(word, tuple(legal), most)) if len(word) <= 60 else []


@lru_cache(maxsize=1024)
def _nearest(word: str, legal: tuple[str, ...], most: int) -> tuple[str, ...]:
    """Cached: a file with one mistake in every line asks the same a thousand times."""
    from difflib import get_close_matches

    same = [w for w in legal if _letters(w) == _letters(word)]
    by_lower = {w.lower(): w for w in legal}
    found = get_close_matches(word.lower(), by_lower, n=most, cutoff=0.6)
    return tuple(dict.fromkeys([*same, *(by_lower[f] for f in found)]))[:most]


def _letters(word: str) -> str:
    """The word without case and what joins its parts."""
    return re.sub(r"[^0-9a-z]", "", word.lower()) or word
