"""The versions of torch that programs are written for; nothing here looks at a program."""

from __future__ import annotations

from planc.ir.version import Version

PINNED: Version = (2, 13)
"""The version that a program is written for, unless another is named."""
VERSIONS: tuple[Version, ...] = ((2, 11), (2, 12), (2, 13), (2, 14), (2, 15))
"""All of them, which are those that the tests run programs on."""
