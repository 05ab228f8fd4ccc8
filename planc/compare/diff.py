"""Differences between two costed plans: `planc.diff/1`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Literal

from planc.compare.resharding_bytes import ReshardingBytes, resharding_bytes
from planc.compare.same_training import Apart, apart
from planc.diag.fast_dataclass import dataclass
from planc.ir.mesh import Mesh
from planc.ir.plan import NOUNS, Plan
from planc.ir.sharding import ParamSharding, Sharded
from planc.ir.target import NO_TARGET, Target
from planc.lowering import state_layout
from planc.picture.notebook import InNotebook

if TYPE_CHECKING:
    from planc.costing import CostedPlan

Part = Literal["plan", "shards", "collectives", "memory", "step", "run", "generator", "serving", "sync"]
MEMORY = ("total", "params", "grads", "optimizer", "activations", "buffers", "comm_buffers", "reserve")
STEP = (
    *("time_s", "mfu", "tokens_per_s_per_device", "compute_s", "recompute_s", "exposed_comm_s", "bubble_s"),
    *("optimizer_s", "offload_s", "overhead_s"),
)
SAME = 1e-9
"""Two numbers with a smaller relative difference are equal."""


@dataclass(frozen=True, kw_only=True)
class PlanChange:
    """One difference between plan A and plan B: `a` and `b` are the two values, None where a plan has no such item."""

    part: Part
    name: str
    unit: str
    a: float | str | None
    b: float | str | None
    names: tuple[str, ...] = ()
    """For a layout: the parameters or activations that have it; for `mfu`: the peak to which each plan's refers."""


@dataclass(frozen=True, kw_only=True)
class Diff(InNotebook):
    """All differences between two plans. `checkpoint` is None if a checkpoint of A does not load in B."""

    a: str
    b: str
    targets: tuple[Target | None, Target | None]
    """The target for which each plan is costed, as in `planc check`; None: any correct program."""
    changes: tuple[PlanChange, ...]
    apart: tuple[Apart, ...]
    checkpoint: ReshardingBytes | None

    @property
    def target(self) -> Target | None:
        """The target for which both plans are costed; None if there is none or they differ."""
        return self.targets[0] if self.targets[0] == self.targets[1] else None

    @property
    def comparable(self) -> bool:
        """True if runs of both plans are expected to have the same losses."""
        return not self.apart

    def to_json(self) -> dict[str, Any]:
        return {
            "format": "planc.diff/1",
            "a": self.a,
            "b": self.b,
            "target": self.target,
            "targets": [*self.targets],
            "changes": [{**asdict(c), "names": list(c.names)} for c in self.changes],
            "losses": {"comparable": self.comparable, "apart": [asdict(reason) for reason in self.apart]},
            "checkpoint": None if self.checkpoint is None else asdict(self.checkpoint),
        }


def diff(a: CostedPlan, b: CostedPlan, *, names: tuple[str, str]) -> Diff:
    """Compare two costed plans; each may be costed for another target. `names` are their names in the result."""
    one, other = a.sharded, b.sharded
    changes = (
        *_targets(a, b),
        *_plan(one.plan, other.plan),
        *_shards(one, other),
        *_collectives(a, b),
        *_memory(a, b),
        *_step(a, b),
        *_run(a, b),
    )
    return Diff(
        a=names[0],
        b=names[1],
        targets=(a.target, b.target),
        changes=changes,
        apart=tuple(apart(one.plan, other.plan)),
        checkpoint=_resharding(a, b),
    )


# The plan.


def _targets(a: CostedPlan, b: CostedPlan) -> Iterator[PlanChange]:
    if a.target != b.target:
        yield PlanChange(part="plan", name="target", unit="", a=a.target or NO_TARGET, b=b.target or NO_TARGET)


def _plan(one: Plan, other: Plan) -> Iterator[PlanChange]:
    for name, say in SETTINGS.items():
        a, b = say(one), say(other)
        if a != b:
            yield PlanChange(part="plan", name=name, unit="", a=a, b=b)


def machines_text(plan: Plan) -> str:
    """Return the machines of `plan` as a `cluster` sentence names them. Their hardware numbers may still differ."""
    cluster = plan.cluster
    shape = f"({'x'.join(map(str, cluster.shape))})" if cluster.is_torus else ""
    return f"{cluster.count} x {cluster.name}{shape}"


def mesh_text(plan: Plan) -> str:
    """Return the axes of the mesh of `plan` with their sizes, and those of its views."""
    views = [f"{' > '.join(f'{a.name} {a.size}' for a in v.axes)} of {', '.join(v.of)}" for v in plan.mesh.views]
    return "; ".join([" > ".join(f"{name} {n}" for name, n in plan.mesh.sizes.items()), *views])


def _pipeline(plan: Plan) -> str | None:
    split = plan.split
    if split is None:
        return None
    chunks = f"(chunks = {split.chunks})" if split.chunks > 1 else ""
    return f"{split.axis} as {split.schedule}{chunks}, {len(split.stages)} stages"


def _sentences_of(field: str) -> Callable[[Plan], str | None]:
    """Return a function from a plan to the text of its sentences for `field`, None if it has none."""

    def say(plan: Plan) -> str | None:
        value = getattr(plan, field)
        nodes = value if isinstance(value, tuple) else (value,)
        said = [" ".join(n.cause.sentence.split()[1:]) for n in nodes if n is not None and n.cause is not None]
        return "; ".join(said) or None

    return say


def _gather(plan: Plan) -> str | None:
    """Return how often a plan gathers parameters, and its bucket and prefetch sizes in layers, as text."""
    said = plan.gather
    bucket = f", {said.bucket} layers together" if said and said.bucket > 1 else ""
    ahead = f", {said.prefetch} layers ahead" if said and said.prefetch else ""
    return f"per {plan.gather_per}{bucket}{ahead}" if plan.store("params") else None


SETTINGS: dict[str, Callable[[Plan], str | None]] = {
    "model": lambda plan: plan.model.name,
    "cluster": machines_text,
    "chip": lambda plan: plan.cluster.chip.name,
    "mesh": mesh_text,
    "batch": lambda plan: f"{plan.batch.sequences:,} x {plan.batch.sequence_tokens:,} tokens",
    "microbatches": lambda plan: f"{plan.microbatches} of {plan.batch.microbatch_sequences} a rank and step",
    "pipeline": _pipeline,
    "gather": _gather,
    "freeze": _sentences_of("freeze"),
    "lora": _sentences_of("lora"),
    "compute": lambda plan: f"{plan.precision.multiplied}, reduced in {plan.precision.reduce}",
    "recompute": _sentences_of("recompute"),
    "attention": _sentences_of("attention"),
    "route": _sentences_of("route"),
    "quantize": _sentences_of("quantize"),
    "offload": _sentences_of("offloads"),
    "overlap": _sentences_of("overlaps"),
    "compile": _sentences_of("compiles"),
    "loss": _sentences_of("chunked_loss"),
    "framework": lambda plan: plan.framework if plan.realise else None,
    "train": _sentences_of("train"),
    "price": _sentences_of("price"),
}
"""Settings of a plan other than layouts, by the name shown to the user."""


# Layouts.


def _shards(one: Sharded, other: Sharded) -> Iterator[PlanChange]:
    """Yield the differences of layouts. Tensors with the same two layouts are one difference; tensors that only one
    model has are skipped."""
    layouts = [{**_params(s), **_activations(s)} for s in (one, other)]
    groups: dict[tuple[str, str], list[str]] = {}
    for name in layouts[0]:
        if name in layouts[1] and layouts[0][name] != layouts[1][name]:
            groups.setdefault((layouts[0][name], layouts[1][name]), []).append(name)
    for (a, b), names in groups.items():
        yield PlanChange(part="shards", name=_first_names(names), unit="", a=a, b=b, names=tuple(names))


def _first_names(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def _params(sharded: Sharded) -> dict[str, str]:
    return {p.param.name: _param_layout(sharded.plan.mesh, p) for p in sharded.params}


def _param_layout(mesh: Mesh, p: ParamSharding) -> str:
    """Return the layout of parameter `p` as text: `heads x head_dim over tp 8; params, grads, optimizer over fsdp
    16`."""
    used = [
        f"{' x '.join(dims)} over {_axes(mesh, axes)}"
        for dims, axes in zip(p.param.shape_dims, p.compute, strict=True)
        if axes
    ]
    over: dict[tuple[str, ...], list[str]] = {}
    for noun in NOUNS:
        if p.stored[noun]:
            over.setdefault(p.stored[noun], []).append(noun)
    stored = [f"{', '.join(nouns)} over {_axes(mesh, axes)}" for axes, nouns in over.items()]
    return "; ".join(used + stored) or "whole"


def _activations(sharded: Sharded) -> dict[str, str]:
    mesh = sharded.plan.mesh
    layouts = {t.name: sharded.declared(t.name) for t in sharded.model.tensors}
    return {
        name: "; ".join(f"{dim} over {_axes(mesh, axes)}" for dim, axes in layout.items()) or "whole"
        for name, layout in layouts.items()
    }


def _axes(mesh: Mesh, names: tuple[str, ...]) -> str:
    return ", ".join(f"{name} {mesh.axis(name).size}" for name in names)


# Numbers.


def _collectives(a: CostedPlan, b: CostedPlan) -> Iterator[PlanChange]:
    """Yield the differences in calls and bytes of each kind of collective on the slowest pipeline stage."""
    sums = [_collective_totals(costed) for costed in (a, b)]
    for key in sorted({**sums[0], **sums[1]}):
        for index, unit in enumerate(("calls", "bytes")):
            pair = [s[key][index] if key in s else None for s in sums]
            yield from number_change("collectives", " ".join(key), unit, pair[0], pair[1])


def _collective_totals(costed: CostedPlan) -> dict[tuple[str, str, str], tuple[float, float]]:
    """Return calls and payload bytes per device and step, by op, axis and dtype."""
    found: dict[tuple[str, str, str], tuple[float, float]] = {}
    for row in costed.timed.mine:
        calls, size = found.get((row.op, row.axis, row.dtype), (0.0, 0.0))
        found[row.op, row.axis, row.dtype] = (calls + row.count, size + row.payload_bytes)
    return found


def _memory(a: CostedPlan, b: CostedPlan) -> Iterator[PlanChange]:
    for part in MEMORY:
        yield from number_change(
            "memory", part, "GiB", getattr(a.memory.per_device_gib, part), getattr(b.memory.per_device_gib, part)
        )
    yield from number_change("memory", "capacity", "GiB", a.memory.capacity_gib, b.memory.capacity_gib)


def _step(a: CostedPlan, b: CostedPlan) -> Iterator[PlanChange]:
    for name in STEP:
        unit = {"mfu": "share", "tokens_per_s_per_device": "tokens/s"}.get(name, "s")
        peaks = (a.step.peak, b.step.peak) if name == "mfu" else ()
        yield from (
            replace(change, names=peaks)
            for change in number_change("step", name, unit, *(getattr(c.step, name) for c in (a, b)))
        )


def _run(a: CostedPlan, b: CostedPlan) -> Iterator[PlanChange]:
    """Yield the differences in days, device hours and price of the training run."""
    currencies = {c.run.currency for c in (a, b) if c.run is not None and c.run.price is not None}
    units = {"days": "days", "device_hours": "hours"} | ({"price": currencies.pop()} if len(currencies) == 1 else {})
    for name, unit in units.items():
        pair = [None if c.run is None else getattr(c.run, name) for c in (a, b)]
        if pair != [None, None]:
            yield from number_change("run", name, unit or "", *pair)


def number_change(part: Part, name: str, unit: str, a: float | None, b: float | None) -> Iterator[PlanChange]:
    """Yield the difference of two numbers of one `name`, `unit` and `part`, if there is one."""
    if a is None or b is None or abs(a - b) > SAME * max(abs(a), abs(b)):
        yield PlanChange(part=part, name=name, unit=unit, a=a, b=b)


# The checkpoint.


def _resharding(a: CostedPlan, b: CostedPlan) -> ReshardingBytes | None:
    one, other = a.sharded, b.sharded
    shapes = [[(p.param.name, s.model.shape(p.param), s.model.copies(p.param)) for p in s.params] for s in (one, other)]
    if shapes[0] != shapes[1] or one.model.kinds != other.model.kinds:
        return None
    same = one.plan.cluster.name == other.plan.cluster.name
    return resharding_bytes(one, other, (state_layout(one, a.target), state_layout(other, b.target)), same_machine=same)
