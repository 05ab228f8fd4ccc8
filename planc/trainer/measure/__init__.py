"""Measurements of this machine for calibration and benchmarks."""
