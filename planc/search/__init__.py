"""Search: what a plan leaves free (`?`) is enumerated, bounded from below, and costed as `check` costs it."""

from planc.search.every import every
from planc.search.rank import Candidate, Found, search

__all__ = ["Candidate", "Found", "every", "search"]
