"""Search: enumerate the free values of a plan (`?`, axis orders), bound each layout from below, cost it as `check`."""

from planc.searching.branch_and_bound import search
from planc.searching.exhaustive import every
from planc.searching.result import Candidate, Found

__all__ = ["Candidate", "Found", "every", "search"]
