"""Emits the program's source text."""
