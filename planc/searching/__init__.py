"""Search for the fastest layouts: enumerates values for the `?` and open axis orders of a plan, bounds each layout's
time and memory from below, and costs the promising ones as `check` does."""

from planc.searching.branch_and_bound import search
from planc.searching.exhaustive import every
from planc.searching.result import Candidate, Found

__all__ = ["Candidate", "Found", "every", "search"]
