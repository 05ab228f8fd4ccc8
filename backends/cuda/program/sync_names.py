"""Names that the module `sync` takes from the rest of a program: what a serve plan decides, here of no tensors."""

from __future__ import annotations

import torch

from planc.sharding.transfer_core import RankRange, TensorTransfer

TRANSFERS: tuple[TensorTransfer, ...] = ()
SIDES = (RankRange(0, 1, 1), RankRange(0, 1, 1))
NAMES: dict[str, tuple[str, str]] = {}
NARROW: set[str] = set()
BUCKET_BYTES = 2**28
DTYPE = torch.bfloat16
