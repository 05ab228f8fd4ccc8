"""The versions of torch that programs are emitted for."""

from __future__ import annotations

from planc.ir.version import Version

PINNED: Version = (2, 13)
"""The version that a program is emitted for by default."""
VERSIONS: tuple[Version, ...] = ((2, 11), (2, 12), (2, 13), (2, 14), (2, 15))
"""All supported versions; the tests run programs on each."""
