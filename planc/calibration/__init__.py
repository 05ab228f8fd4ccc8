"""Calibration of the cost model: fit a machine's hardware numbers to measurements, and give prediction intervals."""
