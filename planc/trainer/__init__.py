"""Floor 7: presets, data, weights, the training loop, receipts and their comparison.

Importing this package loads no numpy, torch or jax. A backend's runtime is imported by the worker
process alone.
"""
