"""Search: enumerates the values of a plan's free places (`?`, orders of axes), computes lower bounds of each layout,
and costs layouts as `check` does."""

from planc.searching.branch_and_bound import search
from planc.searching.exhaustive import every
from planc.searching.result import Candidate, Found

__all__ = ["Candidate", "Found", "every", "search"]
