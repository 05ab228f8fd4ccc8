"""Propagation of layouts through named-dim ops, and the semantic collectives that follow."""
