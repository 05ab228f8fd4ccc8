"""The view of neighbours: plans that differ from this one in one decision, with the change in time and memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from planc.checks import check_plan
from planc.costing.costed import CostedPlan, cost_plan
from planc.diag.errors import PlanError
from planc.ir.plan import NOUNS, Gather, Noun, Plan, Recompute, Split, Store
from planc.language.verbs.split import even
from planc.picture.charts import DivergingRow, diverging_bars
from planc.picture.marks import Picture
from planc.picture.units import gib, percent, seconds
from planc.pipeline.schedules import schedules
from planc.report.data import Data, PageSubject
from planc.sharding.propagate import propagate

MOST, MOST_OF_LARGE = 12, 5
"""Number of neighbours that are costed; fewer for a plan that is slow to cost."""
LARGE = 100
"""Parameters times pipeline ranks of such a plan."""
SAME = 0.002
"""Relative change below which times count as equal."""
SHOWN, SHOWN_GIB = 0.0005, 0.05
"""Smallest visible changes: of time (relative), of memory (GiB)."""


class Neighbour(Data):
    """A plan with one sentence changed, costed for the same target."""

    change: str
    sentence: str
    """The new sentence."""
    replaces: int
    """Line of the sentence that it replaces; 0 if it is added."""
    time_s: float
    memory_gib: float
    mfu: float
    delta_s: float
    delta_gib: float
    fits: bool


class Neighbours(Data):
    """Neighbours that the target accepts: those that fit first, then by time."""

    time_s: float
    memory_gib: float
    capacity_gib: float
    found: tuple[Neighbour, ...]
    refused: tuple[str, ...]
    """Changes that a rule or the target refuses."""
    idle: tuple[str, ...]
    """Changes that affect neither memory nor time."""
    summary: str


class NeighbourChange(NamedTuple):
    """A plan that differs in one sentence, the change in words, the new sentence, and the line of the sentence that it
    replaces (0 if none)."""

    plan: Plan
    change: str
    sentence: str
    line: int


def neighbours(subject: PageSubject) -> Neighbours:
    """Return the plans that differ from the plan of `subject` in one decision, with their costs."""
    costed = subject.costed
    plan, here = costed.sharded.plan, costed.memory.per_device_gib.total
    capacity = costed.memory.capacity_gib
    found: list[Neighbour] = []
    refused: list[str] = []
    idle: list[str] = []
    large = len(costed.sharded.params) * plan.pipeline > LARGE
    for change in spread(list(changes(plan)), MOST_OF_LARGE if large else MOST):
        other = _costed(change.plan, costed)
        if other is None:
            refused.append(change.change)
            continue
        used, step = other.memory.per_device_gib.total, other.step
        if abs(step.time_s - costed.step.time_s) < SHOWN * costed.step.time_s and abs(used - here) < SHOWN_GIB:
            idle.append(change.change)
            continue
        found.append(
            Neighbour(
                change=change.change,
                sentence=change.sentence,
                replaces=change.line,
                time_s=step.time_s,
                memory_gib=used,
                mfu=step.mfu,
                delta_s=step.time_s - costed.step.time_s,
                delta_gib=used - here,
                fits=used <= capacity,
            )
        )
    found.sort(key=lambda n: (not n.fits, n.time_s))
    return Neighbours(
        time_s=costed.step.time_s,
        memory_gib=here,
        capacity_gib=capacity,
        found=tuple(found),
        refused=tuple(refused),
        idle=tuple(idle),
        summary=_message(found, costed.step.time_s, here),
    )


def _costed(plan: Plan, costed: CostedPlan) -> CostedPlan | None:
    try:
        return cost_plan(propagate(check_plan(plan)), backend=costed.backend)
    except PlanError:
        return None


def spread(found: list[NeighbourChange], most: int) -> list[NeighbourChange]:
    """Return at most `most` of the changes `found`, in their order. Kinds of sentences take turns, each with its first
    changes."""
    kinds: dict[str, list[NeighbourChange]] = {}
    for change in found:
        kinds.setdefault(change.sentence.split()[0], []).append(change)
    rounds = [of[i] for i in range(most) for of in kinds.values() if i < len(of)]
    chosen = {id(c) for c in rounds[:most]}
    return [c for c in found if id(c) in chosen]


def changes(plan: Plan) -> Iterator[NeighbourChange]:
    """Yield every plan that differs from `plan` in one decision about recompute, microbatch, gather, store, schedule or
    mesh."""
    yield from _recompute(plan)
    yield from _microbatch(plan)
    yield from _gather(plan)
    yield from _schedule(plan)
    yield from _store(plan)
    yield from _mesh(plan)


def _recompute(plan: Plan) -> Iterator[NeighbourChange]:
    now, line = plan.recompute, plan.recompute.cause.span.line if plan.recompute.cause else 0
    choices: list[tuple[str, ...]] = [(), ("attention.core",), ("blocks",)]
    for ops in choices:
        if ops == now.ops or (ops == ("attention.core",) and "attention.core" not in plan.model.op_names()):
            continue
        text = f"recompute {', '.join(ops) or 'none'}"
        change = f"recompute {'nothing' if not ops else 'whole blocks' if ops == ('blocks',) else ops[0] + ' only'}"
        yield NeighbourChange(replace(plan, recompute=Recompute(ops=ops, cause=now.cause)), change, text, line)


def _microbatch(plan: Plan) -> Iterator[NeighbourChange]:
    batch = plan.batch
    now = batch.microbatch_sequences
    for m in (now * 2, now // 2):
        if m and batch.sequences % (plan.data_parallel * m) == 0 and m != now:
            text = f"batch {batch.sequences} x {batch.sequence_tokens} tokens microbatch {m}"
            changed = replace(plan, batch=replace(batch, microbatch_sequences=m))
            yield NeighbourChange(changed, f"microbatch of {m} instead of {now}", text, batch.cause.span.line)


def _gather(plan: Plan) -> Iterator[NeighbourChange]:
    if not plan.store("params"):
        return
    cause = plan.gather.cause if plan.gather else plan.mesh.cause
    line = plan.gather.cause.span.line if plan.gather else 0
    for per in ("pass", "microbatch", "step"):
        if per != plan.gather_per and (per != "microbatch" or plan.microbatches > 1):
            gather = Gather(per=per, bucket=plan.bucket_layers, cause=cause)
            yield NeighbourChange(
                replace(plan, gather=gather), f"gather parameters per {per}", f"gather params per {per}", line
            )


def _schedule(plan: Plan) -> Iterator[NeighbourChange]:
    split = plan.split
    if split is None or split.order or plan.pipeline == 1:
        return
    layers, line = plan.model.layers, split.cause.span.line
    for name in ("1f1b", "interleaved_1f1b", "interleaved_zero_bubble", "zbv"):
        known = schedules()[name]
        chunks = 2 if known.free_chunks else known.chunks
        stages = plan.pipeline * chunks
        if name == split.schedule or stages > layers:
            continue
        text = f"{name}(chunks = {chunks})" if known.free_chunks else name
        made = replace(split, schedule=name, chunks=chunks, stages=even(layers, stages))
        yield NeighbourChange(
            replace(plan, split=made), f"pipeline as {text}", f"split layers over {split.axis} as {text}", line
        )


def _store(plan: Plan) -> Iterator[NeighbourChange]:
    """Yield plans that shard one more or one fewer of parameters, gradients and optimizer state over the data-parallel
    axes."""
    axes = plan.store("optimizer") or plan.data_axes
    if not axes or any(s.region for s in plan.stores):
        return
    order: tuple[Noun, ...] = ("optimizer", "grads", "params")
    whole = [noun for noun in order if not plan.store(noun)]
    divided = [noun for noun in reversed(order) if plan.store(noun)]
    if whole:
        store = Store(noun=whole[0], axes=axes, cause=plan.mesh.cause)
        text = f"store {whole[0]} over {', '.join(axes)}"
        name = {"params": "parameters", "grads": "gradients"}.get(whole[0], whole[0])
        yield NeighbourChange(
            replace(plan, stores=(*plan.stores, store)), f"divide {name} over {', '.join(axes)} too", text, 0
        )
    if divided and divided[0] == "params":
        stores = tuple(s for s in plan.stores if s.noun != "params")
        rest = ", ".join(n for n in NOUNS if n != "params" and plan.store(n))
        line = next((s.cause.span.line for s in plan.stores if s.noun == "params"), 0)
        text = f"store {rest} over {', '.join(axes)}" if rest else "store params"
        yield NeighbourChange(replace(plan, stores=stores, gather=None), "keep parameters whole", text, line)


def _mesh(plan: Plan) -> Iterator[NeighbourChange]:
    """Yield plans in which one axis of the mesh is half as large and another twice as large."""
    sizes = plan.mesh.sizes
    covered = {name for view in plan.mesh.views for name in view.of}
    for source in reversed(sizes):
        for target in reversed(sizes):
            if source == target or sizes[source] % 2 or {source, target} & covered:
                continue
            changed = {**sizes, source: sizes[source] // 2, target: sizes[target] * 2}
            made = _resized(plan, changed)
            if made is not None:
                text = "mesh " + " > ".join(f"{name} {n}" for name, n in changed.items())
                before = f"{sizes[target]} and {sizes[source]}"
                change = f"{target} {changed[target]} and {source} {changed[source]} instead of {before}"
                yield NeighbourChange(made, change, text, plan.mesh.cause.span.line)


def _resized(plan: Plan, sizes: dict[str, int]) -> Plan | None:
    """Return the plan with these axis sizes; None if its batch or its layers do not divide."""
    every = {**{name: axis.size for name, axis in plan.mesh.every.items()}, **sizes}
    made = replace(plan, mesh=plan.mesh.resized(every.values()))
    if made.batch.sequences % (made.data_parallel * made.batch.microbatch_sequences):
        return None
    split: Split | None = plan.split
    if split is not None and made.mesh.size(split.axis) != plan.mesh.size(split.axis):
        stages = made.mesh.size(split.axis) * split.chunks
        if split.order or stages > plan.model.layers:
            return None
        made = replace(made, split=replace(split, stages=even(plan.model.layers, stages)))
    return made


def _message(found: list[Neighbour], time_s: float, here: float) -> str:
    fitting = [n for n in found if n.fits]
    faster = [n for n in fitting if n.delta_s < -SAME * time_s]
    leaner = min(fitting, key=lambda n: n.memory_gib, default=None)
    if not fitting:
        return f"Of {len(found)} plans one decision away, none fits." if found else "No decision has a neighbour."
    said = f"Of {len(found)} plans one decision away, {len(fitting)} fit and {len(faster)} are faster."
    if faster:
        best = faster[0]
        said += f" Fastest: {best.change}, {percent(-best.delta_s / time_s)} less time for {_more(best.delta_gib)}."
    if leaner is not None and leaner.memory_gib < here - 0.05:
        said += f" Leanest: {leaner.change}, {_more(leaner.delta_gib)} for {_longer(leaner.delta_s)}."
    return said


def _more(delta_gib: float) -> str:
    return f"{gib(abs(delta_gib))} GiB {'more' if delta_gib > 0 else 'less'}"


def _longer(delta_s: float) -> str:
    return f"{seconds(abs(delta_s))} {'more' if delta_s > 0 else 'less'}"


def picture(data: Neighbours, width: float) -> Picture | None:
    """Return bars of the changes in time and memory of the neighbours in `data`, `width` pixels wide; None if there are
    no neighbours."""
    if not data.found:
        return None
    rows = [
        DivergingRow(
            n.change + ("" if n.fits else " (does not fit)"),
            (n.delta_s, n.delta_gib),
            (_signed(f"{100 * n.delta_s / data.time_s:+.1f}") + " %", _signed(f"{n.delta_gib:+.1f}") + " GiB"),
            (_css(n.delta_s), _css(n.delta_gib)),
            faint=not n.fits,
        )
        for n in data.found
    ]
    heads = ("time of a step", "memory of a device")
    return diverging_bars(rows, heads, title="Plans one decision away", summary=data.summary, width=width)


def _signed(text: str) -> str:
    return text if float(text) else text[1:]


def _css(delta: float) -> str:
    return "bad" if delta > 0 else "good"
