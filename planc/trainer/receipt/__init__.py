"""Receipts of runs, and their comparison across stacks."""
