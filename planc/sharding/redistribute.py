"""From one layout of a tensor to another: the collectives in between.

A layout maps dims to the axes that divide them. A tensor may also be an unreduced sum over some
axes (`partial`). Every axis that changes its role gives one step; axes with the same role share it.
"""

from __future__ import annotations

from planc.ir.sharding import Layout, RedistributionStep, StepKind

ORDER: tuple[StepKind, ...] = ("reduce_scatter", "all_reduce", "all_to_all", "all_gather", "slice")
"""Steps that make a tensor smaller come before those that leave its size, and gathers after both: each step moves as
little as it can, and so do the programs."""


def where(layout: Layout, axis: str) -> str:
    """The dim that `axis` divides, or an empty string."""
    return next((dim for dim, axes in layout.items() if axis in axes), "")


def steps_between(before: Layout, partial: tuple[str, ...], after: Layout) -> tuple[RedistributionStep, ...]:
    """The steps that turn `before` (a sum over `partial`) into `after`, in the order of `ORDER`.

    An axis that divided dim d and now divides nothing gathers d; one that now divides another dim is an all-to-all; a
    partial axis that divides a dim afterwards is a reduce-scatter, otherwise an all-reduce; an axis that only appears
    afterwards is a local slice.

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
    """The part of an index space's `layout` that concerns a tensor's `dims`.

    >>> restrict({"sequence": ("tp",), "ffn": ()}, ("batch", "sequence"))
    {'sequence': ('tp',)}
    """
    return {d: layout[d] for d in dims if layout.get(d)}


def outside(layout: Layout, dims: tuple[str, ...]) -> tuple[str, ...]:
    """The axes of a `layout` on dims other than `dims`, which a tensor lacks: summing over them leaves a partial sum
    there.

    >>> outside({"batch": ("fsdp",), "ffn": ("tp",)}, ("batch", "sequence"))
    ('tp',)
    """
    return tuple(a for d, axes in layout.items() if d not in dims for a in axes)
