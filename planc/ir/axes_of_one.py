"""Removes mesh axes of size 1 from a plan's sentences, because such axes shard nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

from planc.ir.plan import PASSES_KEYS, Kernel, Override, Plan, Replicate, Shard, Store


def without_axes_of_one(plan: Plan) -> Plan:
    """Return `plan` without axes of size 1 in its sentences; the same object if no sentence names one.

    The mesh keeps the axes. A sentence that takes precedence over others (an `override`, a `store` for a region of the
    model) stays even if it has no axis left.
    """
    mesh = plan.mesh
    ones = {name for name, axis in mesh.every.items() if axis.size == 1}
    groups = [s.axes for s in plan.shards] + [r.axes for r in plan.replicates] + [s.axes for s in plan.stores]
    groups += [(o.axis,) for o in plan.overlaps] + [axes for o in plan.overrides for axes in o.layout.values()]
    groups += [(plan.split.axis,)] if plan.split else []
    if all(ones.isdisjoint(axes) for axes in groups):
        return plan
    return replace(
        plan,
        shards=tuple(_divisions(plan.shards, ones)),
        replicates=tuple(_divisions(plan.replicates, ones)),
        stores=tuple(_stores(plan, ones)),
        split=plan.pipelined,
        attention=_attention(plan, ones),
        overlaps=tuple(o for o in plan.overlaps if o.axis not in ones),
        overrides=tuple(_override(o, ones) for o in plan.overrides),
    )


def _others(axes: tuple[str, ...], ones: set[str]) -> tuple[str, ...]:
    return tuple(a for a in axes if a not in ones)


Division = TypeVar("Division", Shard, Replicate)


def _divisions(nodes: tuple[Division, ...], ones: set[str]) -> Iterator[Division]:
    return (replace(node, axes=axes) for node in nodes if (axes := _others(node.axes, ones)))


def _stores(plan: Plan, ones: set[str]) -> Iterator[Store]:
    for store in plan.stores:
        axes = _others(store.axes, ones)
        if axes == store.axes:
            yield store
        elif axes or store.dtype or store.region:
            yield replace(store, axes=axes, dim=store.dim if axes else "")


def _attention(plan: Plan, ones: set[str]) -> Kernel | None:
    """Return the plan's attention sentence. If the axes that shard the sequence have size 1, no keys come from other
    ranks, so only the kernel that the sentence names is left (None: it names none)."""
    kernel = plan.attention
    divided = any(s.dim == "sequence" and not ones.isdisjoint(s.axes) for s in plan.shards)
    if kernel is None or kernel.method not in PASSES_KEYS or not divided or plan.axes_of("sequence", "attention"):
        return kernel
    named = kernel.kernel
    return Kernel(method=named.method, block=kernel.block, cause=named.cause) if named else None


def _override(override: Override, ones: set[str]) -> Override:
    left = {dim: _others(axes, ones) for dim, axes in override.layout.items()}
    return replace(override, layout={dim: axes for dim, axes in left.items() if axes})
