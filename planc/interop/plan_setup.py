"""Converts a plan to a TrainingSetup: each mesh axis becomes a degree of parallelism, by what the axis shards."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal, cast

from planc.catalog import build_model, model_names
from planc.interop.setup import CannotSayError, Quantized, Role, TrainingSetup
from planc.interop.shape import shape_of
from planc.ir.dims import DERIVED
from planc.ir.hardware import Cluster
from planc.ir.model import EXPERTS, Model
from planc.ir.plan import NOUNS, Plan, Quantize, Recompute


def setup_of(plan: Plan) -> TrainingSetup:
    """Returns the training configuration that `plan` describes: degrees of parallelism, batch, precision.

    It lacks some sentences, such as `override`, so the caller must compare the plan with a plan written from the setup
    (`planc.interop.effective`). Raises CannotSayError for frozen parameters, and for an axis that is not used as
    pipeline, data, context or tensor parallelism.
    """
    for verb, said in (("freeze", plan.freeze), ("lora", plan.lora)):
        if said is not None:
            raise CannotSayError("planc writes no other system's settings for what is trained", verb)
    framework, plan = plan.framework, plan.for_planc
    roles = _roles(plan)
    size = {role: plan.mesh.size(*axes) for role, axes in roles.items()}
    ep, etp = _expert_degrees(plan)
    return TrainingSetup(
        name=plan.name,
        model=_model_words(plan.model),
        shape=shape_of(plan.model),
        graph=plan.model,
        cluster=_cluster_words(plan.cluster),
        devices=plan.mesh.devices,
        sequences=plan.batch.sequences,
        sequence_tokens=plan.batch.sequence_tokens,
        microbatch=plan.batch.microbatch_sequences,
        pp=size["pp"],
        replica=size["replica"],
        shard=size["shard"],
        cp=size["cp"],
        tp=size["tp"],
        ep=ep,
        etp=etp,
        order=_order(plan, roles),
        zero=_zero(plan, roles["shard"] or roles["cp"]),
        zero_over_cp=bool(roles["cp"]) and set(roles["cp"]) <= set(plan.store("optimizer")),
        whole_grads=bool(plan.store("params")) and not plan.store("grads"),
        gather=plan.gather_per if plan.store("params") else None,
        sp=bool(roles["tp"]) and set(roles["tp"]) <= set(plan.axes_of("sequence", "residual")),
        heads_over_tp=not roles["tp"] or set(roles["tp"]) <= set(plan.axes_of("heads")),
        vocab_over_tp=not roles["tp"] or set(roles["tp"]) <= set(plan.axes_of("vocab")),
        cp_method=_context_method(plan, roles["cp"]),
        cp_balance=plan.attention.balance if plan.attention else "headtail",
        experts_over=_experts_over(plan, roles),
        schedule=plan.split.schedule if plan.split else "1f1b",
        chunks=plan.split.chunks if plan.split else 1,
        stages=_stages(plan),
        route=replace(plan.route, cause=None),
        optimizer=plan.optimizer.name,
        precision=replace(plan.precision, cause=None),
        stored=tuple((noun, dtype) for noun in NOUNS if (dtype := plan.store_dtype(noun)) != "fp32"),
        recompute=Recompute(ops=plan.recompute.ops, kept=plan.recompute.kept, every=plan.recompute.every),
        kernel=plan.attention.method if plan.attention and not roles["cp"] else "",
        quantized=tuple(
            Quantized(which=q.ops, method=_narrow_words(q), wide_layers=q.kept_layers) for q in plan.quantize
        ),
        offloaded=tuple(what for offload in plan.offloads for what in offload.what),
        overlaps=_overlaps(plan, roles),
        compiled=tuple(c.what for c in plan.compiles),
        loss_chunks=plan.loss_chunks,
        framework=framework,
    )


def _roles(plan: Plan) -> dict[Role, tuple[str, ...]]:
    """Returns the mesh axes of each kind of parallelism (role), outermost first. Raises CannotSayError unless each axis
    has exactly one role."""
    mesh = [a.name for a in plan.mesh.axes if a.size > 1]
    pipeline = [plan.split.axis] if plan.split else []
    sequence = plan.axes_of("sequence")
    tensor = [a for a in (*plan.axes_of("ffn"), *plan.axes_of("heads")) if a not in sequence]
    state = {axis for noun in NOUNS for axis in plan.store(noun)}
    roles: dict[Role, tuple[str, ...]] = {
        "pp": _of(mesh, pipeline),
        "cp": _of(mesh, sequence),
        "tp": _of(mesh, tensor),
        "replica": _of(mesh, (a for a in plan.data_axes if a not in state)),
        "shard": _of(mesh, (a for a in plan.data_axes if a in state)),
    }
    for name in mesh:
        used = [role for role, axes in roles.items() if name in axes]
        if len(used) != 1:
            uses = " and ".join(used) or "none of pipeline, data, context and tensor parallelism"
            raise CannotSayError(f"axis `{name}` is for {uses}", "mesh")
    for role, axes in roles.items():
        first = mesh.index(axes[0]) if axes else 0
        if tuple(mesh[first : first + len(axes)]) != axes:
            raise CannotSayError(f"the axes of {role} are not neighbours in the mesh", "mesh")
    return roles


def _of(mesh: Iterable[str], axes: Iterable[str]) -> tuple[str, ...]:
    chosen = set(axes)
    return tuple(a for a in mesh if a in chosen)


def _order(plan: Plan, roles: dict[Role, tuple[str, ...]]) -> tuple[Role, ...]:
    names = [a.name for a in plan.mesh.axes]
    used = sorted((role for role, axes in roles.items() if axes), key=lambda role: names.index(roles[role][0]))
    return (*used, *(role for role in roles if role not in used))


def _zero(plan: Plan, axes: tuple[str, ...]) -> Literal[0, 1, 2, 3]:
    if not axes:
        return 0
    divided = [noun for noun in NOUNS if set(axes) <= set(plan.store(noun))]
    levels: dict[tuple[str, ...], Literal[0, 1, 2, 3]] = {
        (): 0,
        ("optimizer",): 1,
        ("grads", "optimizer"): 2,
        ("params", "grads", "optimizer"): 3,
        ("params", "optimizer"): 3,
    }
    if tuple(divided) not in levels:
        raise CannotSayError(f"{', '.join(divided)} alone are divided", "store")
    return levels[tuple(divided)]


def _context_method(plan: Plan, axes: tuple[str, ...]) -> Literal["ring", "all_gather", "ulysses"]:
    if axes and set(axes) <= set(plan.axes_of("heads", "attention")):
        return "ulysses"
    method = plan.attention.method if plan.attention else "all_gather"
    if axes and method not in ("ring", "all_gather"):
        raise CannotSayError(f"context parallelism with attention as {method}", "attention.core")
    return cast(Literal["ring", "all_gather"], method if axes else "ring")


def _expert_degrees(plan: Plan) -> tuple[int, int]:
    if not plan.model.top_k:
        return 1, 1
    experts = plan.mesh.size(*plan.axes_of("experts", EXPERTS))
    return experts, plan.mesh.size(*plan.axes_of("expert_ffn", EXPERTS))


def _experts_over(plan: Plan, roles: dict[Role, tuple[str, ...]]) -> tuple[Role, ...]:
    view = plan.view_of(EXPERTS)
    covered = view.of if view else plan.axes_of("experts", EXPERTS) if plan.model.top_k else ()
    return tuple(role for role in ("shard", "cp", "tp") if set(roles[role]) & set(covered)) or ("shard", "cp", "tp")


def _stages(plan: Plan) -> tuple[int, ...]:
    from planc.language.verbs.split import even

    if plan.split is None or plan.split.stages == even(plan.model.layers, len(plan.split.stages)):
        return ()
    return tuple(end - begin for begin, end in plan.split.stages)


def _overlaps(plan: Plan, roles: dict[Role, tuple[str, ...]]) -> tuple[tuple[Role | Literal["ep"], str], ...]:
    role_of: dict[str, Role | Literal["ep"]] = {axis: role for role, axes in roles.items() for axis in axes}
    role_of |= dict.fromkeys(plan.axes_of("experts", EXPERTS) if plan.view_of(EXPERTS) else (), "ep")
    return tuple((role_of[o.axis], o.method) for o in plan.overlaps if o.axis in role_of)


def _narrow_words(q: Quantize) -> str:
    inside = [q.recipe] if q.recipe else []
    inside += [f"tile = {q.tile}"] if q.tile else []
    return f"{q.dtype}({', '.join(inside)})" if inside else q.dtype


def _model_words(model: Model) -> str:
    sentence = " ".join(model.cause.sentence.split()) if model.cause else ""
    if model.name not in model_names():
        return sentence.removeprefix("model").strip()
    own = build_model(model.name).sizes
    changes = [
        f"{name} = {size}" for name, size in model.sizes.items() if own.get(name) != size and name not in DERIVED
    ]
    return f"{model.name}({', '.join(changes)})" if changes else model.name


def _cluster_words(cluster: Cluster) -> str:
    sentence = " ".join(cluster.cause.sentence.split()).removeprefix("cluster ")
    before, over, after = sentence.partition(" over ")
    shape = "x".join(map(str, cluster.shape))
    inside = f"({shape})" if cluster.is_torus or "(" in before else ""
    count = f"{cluster.count} x " if not cluster.is_torus or cluster.count > 1 else ""
    return f"{count}{cluster.name}{inside}{over}{after}"
