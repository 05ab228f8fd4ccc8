"""Search: what a plan leaves free (`?`, orders) is enumerated, bounded from below, and costed as `check` does."""

from planc.search.branch_and_bound import search
from planc.search.exhaustive import every
from planc.search.result import Candidate, Found

__all__ = ["Candidate", "Found", "every", "search"]
