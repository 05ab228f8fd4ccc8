"""Refuses plans that torch on XLA cannot run."""
