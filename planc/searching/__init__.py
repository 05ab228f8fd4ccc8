"""Search: what a plan leaves free (`?`, orders) is enumerated, bounded from below, and costed as `check` does."""

from planc.searching.branch_and_bound import search
from planc.searching.exhaustive import every
from planc.searching.result import Candidate, Found

__all__ = ["Candidate", "Found", "every", "search"]
