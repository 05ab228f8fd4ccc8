"""Simulates an even router: returns the number of token rows of each expert without reading a tensor.

Dropless dispatch reads these counts on the host, but fake tensors have no values. The traced rank is the first along
every axis, so its experts are the first ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle
from types import ModuleType
from typing import Any
from unittest.mock import patch

from torch import Tensor

from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.models import moe
from planc.backends.cuda.rules.expert_rows_per_rank import rows_sent
from planc.ir.sharding import Sharded


@contextmanager
def balanced(emitted: ModuleType, sharded: Sharded) -> Iterator[None]:
    """A context in which the program `emitted` reads the token row counts of an even router."""
    roles = AxisRoles(sharded)
    experts = roles.experts
    if not experts.ops or experts.capacity:
        yield
        return
    even = _even_rows(rows_sent(roles), roles.plan.model.sizes["experts"])
    reads = [_exchanged] * bool(experts.exchange) + [_gathered] * experts.gathers
    asked = cycle(reads)

    def sizes(counts: Tensor) -> Any:
        return next(asked)(even, tuple(counts.shape))

    with ExitStack() as stack:
        if hasattr(emitted, "sizes"):
            stack.enter_context(patch.object(emitted, "sizes", sizes))
        stack.enter_context(patch.object(moe, "sizes", lambda counts: even))
        yield


def _even_rows(rows: int, experts: int) -> list[int]:
    """Returns the number of rows of each expert. If `rows` do not divide evenly, the first experts have one more."""
    return [rows // experts + (expert < rows % experts) for expert in range(experts)]


def _exchanged(even: list[int], shape: tuple[int, ...]) -> list[list[list[int]]]:
    """Returns the pair (received, sent) of token row counts of an all-to-all, each [ranks, local experts]."""
    _, ranks, held = shape
    sent = [even[rank * held : (rank + 1) * held] for rank in range(ranks)]
    return [[sent[0]] * ranks, sent]


def _gathered(even: list[int], shape: tuple[int, ...]) -> list[list[list[int]]]:
    """Returns the token row counts [members, ranks, local experts] after an all-gather; all `members` have the same."""
    members, ranks, held = shape
    return [[even[:held]] * ranks] * members
