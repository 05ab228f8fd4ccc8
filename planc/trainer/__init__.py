"""The trainer: presets, data, weights, the training loop, receipts and their comparison.

Importing this package does not import numpy, torch or jax; only the worker process imports a backend's runtime.
"""
