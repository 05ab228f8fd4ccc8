"""Versions of JAX: those that programs are written for, and what differs between them, one file each."""

from __future__ import annotations

from planc.backends.common.version import Framework

JAX = Framework(
    name="jax",
    module="jax",
    pinned=(0, 10),
    versions=((0, 10), (0, 11)),
    tried=((0, 10),),
)
"""JAX 0.11 needs Python 3.12: its names and types were checked (tests/xla/test_versions.py), and nothing was run on it.
No difference is known that a program would have to know."""
