"""Compiles the sentences of a plan file to a `Plan`."""
