"""Starts and runs an emitted program on torch."""
