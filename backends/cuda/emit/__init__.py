"""Emits the source text of a plan's torch program."""
