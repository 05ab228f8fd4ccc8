"""Propagates layouts through ops over named dims, and derives the collectives that any correct program of the plan
needs."""
