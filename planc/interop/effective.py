"""Compares what two plans mean, independent of axis names and sentence order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from planc.interop.ops import block_ops
from planc.ir.model import EXPERTS
from planc.ir.plan import NOUNS, Noun, Plan
from planc.language.framework_rules import tensor_axes

Ranks = tuple[tuple[int, int], ...]
"""Groups of ranks as (size, stride) pairs, outermost first; adjacent pairs that form one axis are merged."""


def effective(plan: Plan) -> dict[str, Any]:
    """Returns what the sentences of `plan` mean, by verb (`shard`, ...), without axis names and sentence order.

    Equal results mean equal layout, state sharding, schedule and compute. Left out are `expect` sentences, and what the
    framework in `realise as` decides.
    """
    plan = plan.for_planc
    regions = ("", *plan.model.regions)
    dims = dict.fromkeys((*plan.model.sizes, "batch", "sequence"))
    return {
        "model": _without_cause(plan.model.to_json()),
        "batch": (plan.batch.sequences, plan.batch.sequence_tokens, plan.batch.microbatch_sequences),
        "cluster": _without_cause(plan.cluster.to_json()),
        "mesh": plan.mesh.devices,
        "shard": {(d, r): ranks for d in dims for r in regions if (ranks := _divided(plan, d, r))},
        "store": {
            (noun, r): (_stored(plan, noun, r), plan.store_dtype(noun, r)) for noun in NOUNS for r in ("", EXPERTS)
        },
        "gather": (plan.gather_per, plan.bucket_layers, plan.buckets_ahead(0)) if plan.store("params") else None,
        "split": plan.split
        and (
            _ranks(plan, [plan.split.axis]),
            plan.split.schedule,
            plan.split.chunks,
            plan.split.stages,
            plan.split.order,
        ),
        "route": _without_cause(plan.route.to_json()) if plan.model.top_k else None,
        "attention.core": plan.attention and _without_cause(plan.attention.to_json()),
        "optimizer": plan.optimizer.name,
        "freeze": plan.freeze and {p.name for p in plan.model.params if p.frozen},
        "lora": plan.lora and (plan.lora.rank, plan.lora.alpha, plan.lora.ops),
        "compute": (plan.precision.multiplied, plan.precision.reduce),
        "recompute": _recomputed(plan),
        "quantize": _quantized(plan),
        "offload": {what for offload in plan.offloads for what in offload.what},
        "overlap": _overlaps(plan),
        "compile": {(c.what, c.method) for c in plan.compiles},
        "loss": plan.loss_chunks,
        "override": [(o.glob, {d: _ranks(plan, axes) for d, axes in o.layout.items()}) for o in plan.overrides],
    }


def differing(a: Plan, b: Plan) -> tuple[str, ...]:
    """Returns the verbs (`shard`, `store`, ...) whose sentences mean something else in `a` than in `b`."""
    one, other = effective(a), effective(b)
    return tuple(verb for verb in one if one[verb] != other[verb])


def _overlaps(plan: Plan) -> set[tuple[Ranks, str]]:
    """Returns how transfers overlap compute: (ranks of an axis, method). The method `none` is left out on
    tensor-parallel axes, because it is their default."""
    shown = {*tensor_axes(plan)}
    said = (o for o in plan.overlaps if plan.mesh.size(o.axis) > 1 and not (o.axis in shown and o.method == "none"))
    return {(_ranks(plan, [o.axis]), o.method) for o in said}


def _ranks(plan: Plan, axes: Iterable[str]) -> Ranks:
    found: list[tuple[int, int]] = []
    for name in plan.mesh.in_order(axes):
        axis = plan.mesh.axis(name)
        if found and found[-1][1] == axis.size * axis.stride:
            found[-1] = (found[-1][0] * axis.size, axis.stride)
        else:
            found.append((axis.size, axis.stride))
    return tuple(found)


def _divided(plan: Plan, dim: str, region: str) -> Ranks:
    """Returns the ranks that shard `dim` in `region`. In the experts, tokens have the dim `slots` instead of batch and
    sequence; the dim `experts` exists only there."""
    token_dims = ("batch", "sequence", "experts")
    if (region == EXPERTS and dim in token_dims[:2]) or (not region and dim in token_dims[2:]):
        return ()
    return _ranks(plan, plan.axes_of(dim, region))


def _stored(plan: Plan, noun: Noun, region: str) -> Ranks:
    """Returns the ranks that shard the state `noun`; for experts, without those that shard the experts' own dims."""
    axes = plan.store(noun, region)
    if region == EXPERTS:
        dims = {d for p in plan.model.params if p.region == EXPERTS for d in p.dims}
        axes = tuple(a for a in axes if not any(a in plan.axes_of(d, EXPERTS) for d in dims))
    return _ranks(plan, axes)


def _recomputed(plan: Plan) -> tuple[Any, ...]:
    recompute = plan.recompute
    if recompute.blocks:
        return recompute.ops, _ops(plan, recompute.kept), recompute.every
    return _ops(plan, recompute.ops), _ops(plan, recompute.kept), recompute.every


def _quantized(plan: Plan) -> set[tuple[Any, ...]]:
    return {
        (op, q.dtype, q.recipe, q.tile, q.kept_layers)
        for q in plan.quantize
        for op in _ops(plan, q.ops) - _ops(plan, q.kept)
    }


def _ops(plan: Plan, words: Iterable[str]) -> frozenset[str]:
    names = [op.name for op in block_ops(plan.model)] + [op.name for s in ("first", "last") for op in plan.model.ops[s]]
    return frozenset(n for word in words for n in names if n == word or n.startswith(f"{word}."))


def _without_cause(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _without_cause(v) for k, v in value.items() if k not in ("cause", "sources")}
    return [_without_cause(v) for v in value] if isinstance(value, list) else value
