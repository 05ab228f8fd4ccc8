"""Converts layouts of named dims to DTensor placements.

A linear layer flattens several named dims into one dim of a torch tensor: a projection's output dim is `heads` times
`head_dim`. If mesh axes shard the outer dim (`heads`), the placement is `Shard`. If they shard the inner dim
(`head_dim`), it is a strided shard: each rank has a piece of every head.
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
    """A DTensor placement over the tensor-parallel axes: a shard of tensor dim `dim`; None: replicated.

    If `parts` is more than 1, the shard is strided: each of `parts` equal parts of the dim is sharded.
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
        """True for a strided shard: the axes shard an inner dim of several that are flattened into one."""
        return self.parts > 1


WHOLE = Placement()


def placement(layout: Layout, groups: Groups, sizes: Mapping[str, int], axes: Collection[str]) -> Placement:
    """Returns the placement of a tensor with this `layout` over the mesh `axes`; axes that do not shard it are ignored.
    `groups` are the named dims of each torch dim, and `sizes` the lengths of the named dims."""
    for index, group in enumerate(groups):
        for at, dim in enumerate(group):
            if set(layout.get(dim, ())) & set(axes):
                return Placement(index, prod(sizes[outer] for outer in group[:at]))
    return WHOLE


def folded(dims: Sequence[str], folds: Groups) -> Groups:
    """Returns the activation dims `dims`, in groups: adjacent dims that the weight of a linear layer flattens into one
    (listed in `folds`) form a group, and every other dim is a group of its own."""
    groups: list[tuple[str, ...]] = []
    rest = tuple(dims)
    while rest:
        fold = next((f for f in folds if f and rest[: len(f)] == f), rest[:1])
        groups.append(fold)
        rest = rest[len(fold) :]
    return tuple(groups)
