"""Versions of JAX that programs are emitted for, and their differences, one per file."""

from __future__ import annotations

from planc.backends.common.version import Framework

JAX = Framework(
    name="jax",
    module="jax",
    pinned=(0, 10),
    versions=((0, 10), (0, 11)),
    tried=((0, 10),),
)
"""JAX 0.11 needs Python 3.12: names and types were checked (tests/xla/test_versions.py), but nothing was run on it. No
difference that affects emitted programs is known."""
