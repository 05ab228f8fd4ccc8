"""Propagation of layouts through ops over named dims, and the semantic collectives that result."""
