"""Comparison of plans: differences between two plans, and the cost of one plan at many values or on many machines."""
