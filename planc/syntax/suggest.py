"""Did you mean: the legal words nearest to what was written."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache


def nearest(word: str, legal: Iterable[str], most: int = 3) -> list[str]:
    """Legal words that look like `word`, best first."""
    return list(_nearest(word, tuple(legal), most)) if len(word) <= 60 else []


@lru_cache(maxsize=1024)
def _nearest(word: str, legal: tuple[str, ...], most: int) -> tuple[str, ...]:
    """Remembered: a file with one mistake in every line asks the same a thousand times."""
    from difflib import get_close_matches

    by_lower = {w.lower(): w for w in legal}
    found = get_close_matches(word.lower(), by_lower, n=most, cutoff=0.6)
    return tuple(by_lower[f] for f in found)
