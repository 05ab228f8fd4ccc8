"""Calibration: a machine's numbers from its measurements, and the intervals of predictions."""
