"""Matrices for Muon's orthogonalization are gathered one dim at a time, the longer first, in fp32; experts stay
sharded.

The program requires whole matrices before the iteration and after each of its steps: left to itself XLA communicates in
every matmul. Read on virtual CPU devices from dp 4 > tp 2 with zero1: 204,392 bytes over both axes, and 1,318,000
without.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planc.backends.xla.analysis.layouts import cut
from planc.backends.xla.rules.rule import Rows, changed
from planc.ir.collective import DTYPE_BYTES, Collective
from planc.ir.sharding import Sharded

NAME = "gather_whole_updates"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    return tuple(made for row in rows for made in (_by_dim(sharded, row) if row.carries == "update" else (row,)))


def _by_dim(sharded: Sharded, row: Collective) -> Iterator[Collective]:
    plan, p = sharded.plan, sharded.param[row.tensor]
    mesh, place = plan.mesh, cut(plan, p, "optimizer")
    stored = p.stored["optimizer"]
    axes = [mesh.in_order((*used, *(stored if i == place else ()))) for i, used in enumerate(p.compute)]
    *leading, height, width = plan.model.shape(p.param)
    wide = row.buffer_bytes / DTYPE_BYTES[row.dtype] * DTYPE_BYTES["fp32"]
    wide /= mesh.size(*(a for dim in axes[: len(leading)] for a in dim))
    longer, shorter = (axes[-1], axes[-2]) if height <= width else (axes[-2], axes[-1])
    for over, bytes in ((longer, wide / mesh.size(*shorter)), (shorter, wide)):
        if over:
            moved = replace(row, axes=over, group_size=mesh.size(*over))
            yield changed(moved, NAME, dtype="fp32", buffer_bytes=bytes)
