"""Placements: from named dims to the dimensions of a torch tensor.

A linear layer folds several named dims into one dimension: `heads` and `head_dim` are the rows of a projection.
Dividing the outer one is a `Shard`; dividing an inner one takes a part of each outer one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from planc.ir.sharding import Layout

Groups = tuple[tuple[str, ...], ...]
"""The named dims that each dimension of a torch tensor stands for."""

STRIDED = "_StridedShard"
"""torch's only name for a division inside a dimension. It is not public; the emitted file asks for one
version of torch."""


@dataclass(frozen=True)
class Placement:
    """A DTensor placement over the tensor axes; `dim` None: whole on every rank.

    With `parts` > 1, each of that many equal parts of the dimension is divided.
    """

    dim: int | None = None
    parts: int = 1

    def __str__(self) -> str:
        """The placement as the emitted file writes it."""
        if self.dim is None:
            return "Replicate()"
        return f"Shard({self.dim})" if self.parts == 1 else f"{STRIDED}({self.dim}, split_factor={self.parts})"

    @property
    def inner(self) -> bool:
        """True if it divides an inner dim of a folded dimension."""
        return self.parts > 1


WHOLE = Placement()


def placement(layout: Layout, groups: Groups, sizes: Mapping[str, int], axes: Collection[str]) -> Placement:
    """The placement of a tensor with these dim groups whose layout assigns `axes`."""
    for index, group in enumerate(groups):
        for at, dim in enumerate(group):
            if set(layout.get(dim, ())) & set(axes):
                return Placement(index, prod(sizes[outer] for outer in group[:at]))
    return WHOLE


def folded(dims: Sequence[str], folds: Groups) -> Groups:
    """`dims`, those of an activation, as a linear layer sees them: neighbours that its weight folds (`folds`) are
    one."""
    groups: list[tuple[str, ...]] = []
    rest = tuple(dims)
    while rest:
        fold = next((f for f in folds if f and rest[: len(f)] == f), rest[:1])
        groups.append(fold)
        rest = rest[len(fold) :]
    return tuple(groups)
