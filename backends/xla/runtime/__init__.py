"""Starts and runs a program on JAX."""
