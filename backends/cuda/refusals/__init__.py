"""Refuses plans with sentences that torch cannot run, or that planc does not lower to torch."""
