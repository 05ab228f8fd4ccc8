"""Did you mean: the legal words nearest to what was written."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, legal: Iterable[str], most: int = 3) -> list[str]:
    """Legal words that look like `word`, best first."""
    if len(word) > 60:
        return []
    from difflib import get_close_matches

    by_lower = {w.lower(): w for w in legal}
    found = get_close_matches(word.lower(), by_lower, n=most, cutoff=0.6)
    return [by_lower[f] for f in found]
