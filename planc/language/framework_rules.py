"""Fills in the decisions that a plan's framework (`realise as FRAMEWORK`) makes if no sentence does. `Plan.for_planc`
is the plan without them."""

from __future__ import annotations

from dataclasses import replace

from planc.frameworks import OWN, policy_of
from planc.ir.axes_of_one import without_axes_of_one
from planc.ir.model import Model
from planc.ir.plan import Kernel, Overlap, Plan, RealisedAs, Store
from planc.ir.policy import Policy


def settled(plan: Plan) -> Plan:
    """Return `plan` ready for propagation: axes of size 1 are removed, and the framework's decisions filled in for the
    current axis sizes."""
    return filled(without_axes_of_one(plan))


def filled(plan: Plan) -> Plan:
    """Return `plan` with the decisions of its framework that no sentence makes: attention kernel, TP overlap, whether a
    recomputed block runs to its end, dtype of gradients, padding of the vocabulary.

    The `realise` sentence becomes the cause of these decisions.
    """
    realise = plan.realise
    if realise is None or realise.framework == OWN:
        return plan
    rules = policy_of(realise.framework)
    vocab = plan.model.sizes["vocab"]
    padded = rules.padded_vocab(vocab, plan.mesh.size(*plan.axes_of("vocab")))
    whole = plan.recompute.ops == ("blocks",) and rules.runs_whole_blocks(plan.cluster.chip.name)
    narrow = rules.grads_as_reduced and plan.precision.reduce != "fp32"
    held = any(s.noun == "grads" and s.dtype for s in plan.stores)
    kept = Store(noun="grads", dtype=plan.precision.reduce, cause=realise.cause)
    return replace(
        plan,
        stores=(*plan.stores, kept) if narrow and not held else plan.stores,
        attention=_kernel(plan, rules, realise),
        overlaps=_overlaps(plan, rules, realise),
        recompute=replace(plan.recompute, ops=("whole_blocks",)) if whole else plan.recompute,
        model=_with_vocab(plan.model, padded),
        realise=replace(realise, whole_blocks=whole or realise.whole_blocks),
    )


def _kernel(plan: Plan, rules: Policy, realise: RealisedAs) -> Kernel | None:
    name = rules.attention_kernel(plan.cluster.chip.name)
    if plan.attention is not None or not name:
        return plan.attention
    return Kernel(method=name, cause=realise.cause)


def _overlaps(plan: Plan, rules: Policy, realise: RealisedAs) -> tuple[Overlap, ...]:
    """Return the plan's `overlap` decisions. A dense model also gets the framework's default for each tensor-parallel
    axis without one."""
    method = rules.tp_overlap_torus if plan.cluster.has_tpus else rules.tp_overlap
    if not method or plan.model.top_k:
        return plan.overlaps
    said = {o.axis for o in plan.overlaps}
    axes = (a for a in tensor_axes(plan) if a not in said)
    return (*plan.overlaps, *(Overlap(axis=a, method=method, cause=realise.cause) for a in axes))


def tensor_axes(plan: Plan) -> tuple[str, ...]:
    """Return the mesh axes of `plan` that shard the attention heads or the feed-forward width."""
    divided = {a for s in plan.shards if s.dim in ("heads", "ffn") and not s.region for a in s.axes}
    return plan.mesh.in_order(divided)


def _with_vocab(model: Model, vocab: int) -> Model:
    return model if vocab == model.sizes["vocab"] else replace(model, sizes={**model.sizes, "vocab": vocab})
