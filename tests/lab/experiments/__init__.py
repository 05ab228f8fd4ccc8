"""Experiments of `planc bench accelerator`: what planc predicts for this machine's devices, beside what they do."""
