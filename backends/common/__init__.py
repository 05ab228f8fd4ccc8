"""Helpers shared by the backends."""
