"""Starts and runs a program on torch."""
