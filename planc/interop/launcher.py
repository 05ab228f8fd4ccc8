"""The number of ranks that a launcher's flags start: torchrun, srun, deepspeed."""

from __future__ import annotations

from collections.abc import Mapping

from planc.diag.span import Span
from planc.interop.document import Given

NODES = ("nnodes", "nodes", "N", "num_nodes")
RANKS = ("nproc_per_node", "ntasks_per_node", "gpus_per_node", "num_gpus")
"""Flags that hold the nodes of a job and the ranks of each; the first that is given counts."""


def world_size(launcher: Mapping[str, Given]) -> tuple[int, str, Span] | None:
    """Ranks that `launcher` starts, the flags that say so, and their place; None where they leave it open.

    A launcher without a number of nodes starts one.
    """
    ranks = _whole(launcher, RANKS)
    if ranks is None:
        return None
    nodes = _whole(launcher, NODES)
    if nodes is None:
        return None if any(name in launcher for name in NODES) else (ranks[0], f"`{ranks[1]}`", ranks[2])
    return nodes[0] * ranks[0], f"`{nodes[1]}` x `{ranks[1]}`", nodes[2]


def _whole(launcher: Mapping[str, Given], names: tuple[str, ...]) -> tuple[int, str, Span] | None:
    for name in names:
        given = launcher.get(name)
        if given is not None and given.certain and str(given.value).isdecimal() and len(str(given.value)) < 9:
            return int(str(given.value)), name, given.span
    return None
