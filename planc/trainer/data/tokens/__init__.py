"""Tokens from files: memory-mapped streams, tokenized text, and the order of sequences."""
