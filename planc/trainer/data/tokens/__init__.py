"""Tokens from files: memory-mapped streams, text made into them, and the order in which they are shown."""
