"""Search: what a plan leaves free (`?`, orders) is enumerated, bounded from below, and costed as `check` does."""

from planc.search.branch_and_bound import Candidate, Found, search
from planc.search.exhaustive import every

__all__ = ["Candidate", "Found", "every", "search"]
