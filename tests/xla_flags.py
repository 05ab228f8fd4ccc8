"""XLA's options for a program that runs a few steps: little is done to make it fast, which takes most of a compile."""

from __future__ import annotations

QUICKLY_COMPILED = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
"""A quarter of the time that a compile takes by itself."""
