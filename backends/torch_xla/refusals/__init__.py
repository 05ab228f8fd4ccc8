"""Refusals of torch on XLA, as diagnostics."""
