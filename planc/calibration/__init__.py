"""Calibration: fit a machine's numbers to measurements, and give intervals for predictions."""
