"""Redistribution of a tensor from one layout to another: the collectives that it needs.

A layout maps dims to the axes that shard them. A tensor may also be a partial sum over some axes (`partial`). Every
axis that changes its role needs a step; axes with the same change share one step.
"""

from __future__ import annotations

from planc.ir.sharding import Layout, RedistributionStep, StepKind

ORDER: tuple[StepKind, ...] = ("reduce_scatter", "all_reduce", "all_to_all", "all_gather", "slice")
"""Steps that reduce a tensor's size come before those that keep it, and gathers last, to minimize transferred bytes;
emitted programs use the same order, but slice before an all-to-all."""


def where(layout: Layout, axis: str) -> str:
    """Return the dim that `axis` shards; "" if it shards none."""
    return next((dim for dim, axes in layout.items() if axis in axes), "")


def steps_between(before: Layout, partial: tuple[str, ...], after: Layout) -> tuple[RedistributionStep, ...]:
    """Return the collectives that turn layout `before` (a partial sum over `partial`) into `after`, sorted by `ORDER`.

    Each axis decides: a partial sum becomes a reduce-scatter if the axis shards a dim in `after`, else an all-reduce.
    An axis that shards a dim in `before` only is an all-gather; one that shards another dim in `after`, an all-to-all.
    An axis that is new in `after` is a local slice.

    >>> [(s.kind, s.axes, s.dim) for s in steps_between({"sequence": ("tp",)}, (), {})]
    [('all_gather', ('tp',), 'sequence')]
    """
    grouped: dict[tuple[StepKind, str, str], list[str]] = {}
    for axis in partial:
        target = where(after, axis)
        key: tuple[StepKind, str, str] = ("reduce_scatter", target, "") if target else ("all_reduce", "", "")
        grouped.setdefault(key, []).append(axis)
    for dim, axes in before.items():
        for axis in axes:
            target = where(after, axis)
            if target == dim:
                continue
            grouped.setdefault(("all_to_all", dim, target) if target else ("all_gather", dim, ""), []).append(axis)
    for dim, axes in after.items():
        for axis in axes:
            if axis not in partial and not where(before, axis):
                grouped.setdefault(("slice", dim, ""), []).append(axis)
    ordered = sorted(grouped.items(), key=lambda item: ORDER.index(item[0][0]))
    return tuple(
        RedistributionStep(kind=kind, axes=tuple(axes), dim=dim, to_dim=to_dim) for (kind, dim, to_dim), axes in ordered
    )


def restrict(layout: Layout, dims: tuple[str, ...]) -> Layout:
    """Return the part of an op's `layout` that applies to a tensor with these `dims`; unsharded dims are left out.

    >>> restrict({"sequence": ("tp",), "ffn": ()}, ("batch", "sequence"))
    {'sequence': ('tp',)}
    """
    return {d: layout[d] for d in dims if layout.get(d)}


def outside(layout: Layout, dims: tuple[str, ...]) -> tuple[str, ...]:
    """Return the axes of a `layout` that shard other dims than `dims`, those of a tensor. If an op sums over these
    other dims, the tensor is a partial sum over the returned axes.

    >>> outside({"batch": ("fsdp",), "ffn": ("tp",)}, ("batch", "sequence"))
    ('tp',)
    """
    return tuple(a for d, axes in layout.items() if d not in dims for a in axes)
