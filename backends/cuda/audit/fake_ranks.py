"""Runs this process as one of many ranks, without starting other processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextmanager
def fake_rank(devices: int, rank: int) -> Iterator[None]:
    """A context in which this process is `rank` of `devices`: collectives return at once, and transfer nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=devices)
    try:
        yield
    finally:
        dist.destroy_process_group()
