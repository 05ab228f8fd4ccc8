"""Failing inputs made small: parts are left out as long as the failure stays the same (delta debugging).

After A. Zeller and R. Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


def smaller(parts: Sequence[bytes], fails: Callable[[list[bytes]], bool], most_tries: int = 400) -> list[bytes]:
    """A shortest list that was found of parts with which `fails` is still true, after at most `most_tries` calls.

    `fails` is true for `parts` themselves.
    """
    kept, tries, size = list(parts), 0, max(1, len(parts) // 2)
    while tries < most_tries and kept:
        start, left_out = 0, False
        while start < len(kept) and tries < most_tries:
            rest = kept[:start] + kept[start + size :]
            tries += 1
            if fails(rest):
                kept, left_out = rest, True
            else:
                start += size
        if size == 1 and not left_out:
            break
        size = max(1, size // 2)
    return kept
