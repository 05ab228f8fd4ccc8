"""Muon gathers a sharded matrix one mesh dimension at a time, instead of in one collective over all of them.

DTensor gathers the innermost dimension first, with FSDP's padding. If tensor parallelism and FSDP shard the same tensor
dim, FSDP's shards are inside those of tensor parallelism, and are gathered first. Observed with llama_micro on fsdp 2 >
tp 2 (torch 2.13): 126464 bytes over fsdp and 157440 over tp.
"""

from __future__ import annotations

from collections.abc import Iterator

from planc.backends.cuda.analysis.fsdp_shard_dim import stored_dim, stored_over
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.rules.pad_dim0 import padded_elements
from planc.backends.cuda.rules.rule import Rows, changed, over
from planc.ir.collective import DTYPE_BYTES, Collective

NAME = "gather_whole_updates"


def apply(roles: AxisRoles, rows: Rows) -> Rows:
    """Returns `rows` with each all-gather of a Muon update split into one per mesh dimension (of `roles`)."""
    return tuple(new for row in rows for new in (_by_dimension(roles, row) if row.carries == "update" else (row,)))


def _by_dimension(roles: AxisRoles, row: Collective) -> Iterator[Collective]:
    p, mesh = roles.sharded.param[row.tensor], roles.plan.mesh
    stored = tuple(a for a in row.axes if a in stored_over(roles, p))
    tensor = tuple(a for a in row.axes if a not in stored)
    if not stored:
        yield row
        return
    inside = bool(tensor) and bool(set(p.compute[stored_dim(roles, p)]) & set(tensor))
    parts = mesh.size(*tensor)
    padded = padded_elements(roles, row.tensor) * parts
    whole = row.buffer_bytes / DTYPE_BYTES[row.dtype]
    steps = (
        [(stored, padded / parts), (tensor, whole)]
        if inside
        else [(tensor, padded / mesh.size(*stored)), (stored, padded)]
    )
    for axes, elements in steps:
        if axes:
            yield changed(row, NAME, **over(row, roles, axes), buffer_bytes=elements * DTYPE_BYTES[row.dtype])
