"""The sentences that torch cannot do, or that planc does not compile for it: each with its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from planc.diag.diagnostic import Diagnostic
from planc.ir.base import Cause
from planc.ir.plan import NOUNS
from planc.ir.sharding import OpSharding, Sharded
from planc.sharding.replay import names_op

from ..not_lowered import not_lowered
from .emit_pipeline import SCHEDULES
from .models.places import PLACES
from .roles import Roles

CODE = "E0901"
Refusal = tuple[Cause | None, str, str]
"""The sentence, what cannot be done with it, and what can."""


def refusals(sharded: Sharded) -> list[Diagnostic]:
    """Every sentence that the cuda target refuses, in no particular order; empty when it can do all."""
    if found := not_lowered(sharded.plan, "cuda"):
        return found
    roles = Roles(sharded)
    return [
        Diagnostic(
            code=CODE,
            message=f"the cuda target cannot do `{_sentence(sharded, cause)}`: {what}",
            span=(cause or sharded.plan.mesh.cause).span,
            help=instead,
        )
        for rule in RULES
        for cause, what, instead in rule(sharded, roles)
    ]


def _sentence(sharded: Sharded, cause: Cause | None) -> str:
    said = cause or sharded.plan.mesh.cause
    return said.via or said.sentence


def _stores_apart(sharded: Sharded, roles: Roles) -> Iterator[Refusal]:
    """fully_shard keeps one division for all state, over ranks that see different data."""
    plan = sharded.plan
    for noun in NOUNS:
        axes = plan.store(noun)
        if axes and axes != roles.shard:
            what = f"{noun} over {_and(axes)} but optimizer over {_and(roles.shard) or 'nothing'}"
            yield plan.cause_of_store(noun), what, "store what is stored over the same axes, optimizer first"
    strange = [a for a in roles.shard if a not in plan.data_axes]
    if strange:
        what = f"{_and(strange)} does not divide the batch"
        yield plan.cause_of_store("optimizer"), what, f"add `shard batch over {', '.join(roles.shard)}`"


def _store_dtypes(sharded: Sharded, roles: Roles) -> Iterator[Refusal]:
    for store in sharded.plan.stores:
        if store.dtype not in ("", "fp32"):
            yield store.cause, f"{store.noun} are kept in fp32", "leave out the dtype"


def _stored_dims(sharded: Sharded, roles: Roles) -> Iterator[Refusal]:
    """fully_shard pads dimension 0 only."""
    parts = sharded.plan.mesh.size(*roles.shard)
    for p in sharded.params:
        if p.on_dim is None or p.on_dim == 0:
            continue
        length = sharded.model.shape(p.param)[p.on_dim] // sharded.plan.mesh.size(*p.compute[p.on_dim])
        if length % parts:
            what = f"dimension {p.on_dim} of {p.param.name} has {length} rows, which {parts} does not divide"
            yield p.cause, what, "torch pads the first dimension only: leave out `on`"
            return


def _apart(sharded: Sharded, roles: Roles) -> Iterator[Refusal]:
    for axes in roles.apart():
        what = f"{_and(axes)} have one role but are not neighbours"
        yield sharded.plan.mesh.cause, what, "put them next to each other"


def _order(sharded: Sharded, roles: Roles) -> Iterator[Refusal]:
    """torch composes its meshes in this order only."""
    order = [f.role for f in roles.factors]
    if order != [r for r in ("pipeline", "replicate", "shard", "tensor") if r in order]:
        wanted = [a for r in ("pipeline", "replicate", "shard", "tensor") for a in _axes(roles, r)]
        yield sharded.plan.mesh.cause, "torch composes them in another order", f"write {' > '.join(wanted)}"


def _axes(roles: Roles, role: str) -> tuple[str, ...]:
    return next((f.axes for f in roles.factors if f.role == role), ())


def _tensor_axes(sharded: Sharded, roles: Roles) -> Iterator[Refusal]:
    """Several axes of tensor parallelism work as one, so each use must name all of them."""
    whole = set(roles.tensor)
    for shard in sharded.plan.shards:
        used = whole & set(shard.axes)
        if used and used != whole:
            what = f"{_and(roles.tensor)} are one dimension of torch's mesh, and this names {_and(used)} only"
            yield shard.cause, what, f"divide over {', '.join(roles.tensor)} together, or merge the axes"


STYLED: dict[str, set[str]] = {
    "embedding": {"vocab"},
    "matmul": {"heads", "kv_heads", "ffn", "vocab"},
    "norm": {"sequence"},
    "rope": {"heads", "kv_heads"},
    "attention": {"heads", "kv_heads"},
    "elementwise": {"ffn"},
    "add": {"sequence"},
    "loss": {"vocab"},
}
"""The dims that a kind of op may have divided over the tensor axis."""


def _tensor_dims(sharded: Sharded, roles: Roles) -> Iterator[Refusal]:
    seen: set[tuple[Cause | None, str]] = set()
    for ops in sharded.ops.values():
        for o in ops:
            for dim in _divided(o, roles) - STYLED.get(o.op.kind, set()) - {"batch"}:
                cause = sharded.plan.cause_of_shard(dim, roles.tensor[0], o.op.region)
                if (cause, dim) not in seen:
                    seen.add((cause, dim))
                    what = f"there is no parallel style for {o.op.name} with {dim} divided"
                    yield cause, what, "scope it, as in `shard sequence over tp in residual`"


def _grouped_heads(sharded: Sharded, roles: Roles) -> Iterator[Refusal]:
    for ops in sharded.ops.values():
        for o in ops:
            divided = _divided(o, roles)
            if o.op.kind == "attention" and ("heads" in divided) != ("kv_heads" in divided):
                cause = sharded.plan.cause_of_shard("heads", roles.tensor[0], o.op.region)
                yield cause, "heads and kv_heads must be divided alike", "divide both, or neither"


def _divided(o: OpSharding, roles: Roles) -> set[str]:
    return {d for d, axes in o.layout.items() if set(axes) & set(roles.tensor)}


def _schedule(sharded: Sharded, roles: Roles) -> Iterator[Refusal]:
    split = sharded.plan.split
    if split is None:
        return
    if split.schedule not in SCHEDULES:
        yield split.cause, f"it has no schedule {split.schedule}", f"one of {', '.join(SCHEDULES)}"
    if any(end <= begin for begin, end in split.stages[1:-1]):
        yield split.cause, "a stage between the first and the last has no layer", "give each at least one"


def _recompute(sharded: Sharded, roles: Roles) -> Iterator[Refusal]:
    """An op is wrapped through its module, which must do nothing else."""
    plan = sharded.plan
    if plan.recompute.blocks:
        return
    ops = [o.op for o in sharded.ops["block"]]
    places = PLACES.get(sharded.model.family, {})
    shared = {op.name for op in ops if not op.params and op.name not in places}
    for word in plan.recompute.ops:
        for op in ops:
            if names_op(word, op) and op.name in shared:
                what = f"{op.name} has no module of its own in {sharded.model.family}"
                yield plan.recompute.cause, what, "recompute blocks, or ops with a module of their own"


def _and(names: tuple[str, ...] | list[str] | set[str]) -> str:
    return " and ".join(sorted(names) if isinstance(names, set) else names)


RULES: tuple[Callable[[Sharded, Roles], Iterator[Refusal]], ...] = (
    _stores_apart,
    _store_dtypes,
    _stored_dims,
    _apart,
    _order,
    _tensor_axes,
    _tensor_dims,
    _grouped_heads,
    _schedule,
    _recompute,
)
