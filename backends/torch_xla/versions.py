"""The versions of torch_xla that programs are emitted for."""

from __future__ import annotations

from planc.backends.common.version import Framework

TORCH_XLA = Framework(name="torch_xla", module="torch_xla", pinned=(2, 9), versions=((2, 9),), tried=((2, 9),))
"""The last version of torch_xla so far, for torch 2.9."""
