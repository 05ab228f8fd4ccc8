"""Converts layouts of named dims to DTensor placements.

A linear layer folds several named dims into one dim of a torch tensor: `heads` and `head_dim` are the rows of a
projection. A sharded outer dim (`heads`) becomes a `Shard`. A sharded inner dim (`head_dim`) becomes a strided shard:
one piece of every outer index.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from planc.ir.sharding import Layout

Groups = tuple[tuple[str, ...], ...]
"""The named dims that each dim of a torch tensor consists of."""

STRIDED = "_StridedShard"
"""torch's name for a strided shard, which is not public; the emitted file requires one version of torch."""


@dataclass(frozen=True)
class Placement:
    """A DTensor placement over the tensor axes: a shard of the dim `dim`; replicated if `dim` is None.

    If `parts` is more than 1, the shard is strided: each of that many equal parts of the dim is sharded.
    """

    dim: int | None = None
    parts: int = 1

    def __str__(self) -> str:
        """Returns the placement as Python source."""
        if self.dim is None:
            return "Replicate()"
        return f"Shard({self.dim})" if self.parts == 1 else f"{STRIDED}({self.dim}, split_factor={self.parts})"

    @property
    def inner(self) -> bool:
        """True if the placement shards an inner dim of a folded dim."""
        return self.parts > 1


WHOLE = Placement()


def placement(layout: Layout, groups: Groups, sizes: Mapping[str, int], axes: Collection[str]) -> Placement:
    """Returns the placement of a tensor whose layout is `layout`, over those of `axes` that shard it. `groups` are the
    tensor's named dims, by torch dim, and `sizes` the lengths of named dims."""
    for index, group in enumerate(groups):
        for at, dim in enumerate(group):
            if set(layout.get(dim, ())) & set(axes):
                return Placement(index, prod(sizes[outer] for outer in group[:at]))
    return WHOLE


def folded(dims: Sequence[str], folds: Groups) -> Groups:
    """Returns the activation dims `dims` in groups, as a linear layer sees them: adjacent dims that the layer's weight
    folds into one (`folds`) are one group."""
    groups: list[tuple[str, ...]] = []
    rest = tuple(dims)
    while rest:
        fold = next((f for f in folds if f and rest[: len(f)] == f), rest[:1])
        groups.append(fold)
        rest = rest[len(fold) :]
    return tuple(groups)
