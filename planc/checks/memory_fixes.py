"""Edits that reduce a plan's memory, each with the memory and the step time of the edited plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace as replaced

from planc.checks.edits import add, mesh_sentence, replace, sentence
from planc.checks.recost import gib, recost
from planc.costing import CostedPlan
from planc.diag.diagnostic import Fix
from planc.diag.fast_dataclass import dataclass
from planc.ir.base import Cause
from planc.ir.mesh import Mesh
from planc.ir.plan import NOUNS, Gather, Plan, Recompute, Shard, Store

Change = Callable[[Plan], Plan]


@dataclass(frozen=True)
class MemoryFix:
    """A change of a plan that may reduce its memory, and the same change as an edit of its text. Of changes with the
    same `kind`, at most one can be made."""

    kind: str
    title: str
    change: Change
    fix: Fix | None


@dataclass(frozen=True)
class CostedFixes:
    """One or more changes of a plan, with the memory (GiB of the fullest device) and step time of the changed plan."""

    memory_fixes: tuple[MemoryFix, ...]
    gib: float
    time_s: float

    @property
    def title(self) -> str:
        return "` and `".join(m.title for m in self.memory_fixes)

    @property
    def fix(self) -> Fix | None:
        """One fix with the edits of all changes. None if one of them has no edit."""
        fixes = [m.fix for m in self.memory_fixes]
        if None in fixes or not fixes:
            return None
        edits = tuple(e for f in fixes if f for e in f.edits)
        return Fix(", ".join(f.title for f in fixes if f), edits)


def cost_fixes(costed: CostedPlan, *memory_fixes: MemoryFix) -> CostedFixes | None:
    """Apply `memory_fixes` to the plan of `costed` and cost it for the same target. None if the target refuses it."""
    plan = costed.sharded.plan
    for candidate in memory_fixes:
        plan = candidate.change(plan)
    other = recost(plan, costed)
    return None if other is None else CostedFixes(memory_fixes, gib(other), other.step.time_s)


def combined_fixes(
    costed: CostedPlan, singles: list[CostedFixes], capacity_gib: float, most: int = 4
) -> CostedFixes | None:
    """Combine fixes until the plan fits, those that save the most memory first. None if it does not fit with `most` of
    them.

    Args:
        costed: the plan that does not fit.
        singles: each fix, costed without the others.
        capacity_gib: memory of one device.
        most: largest number of fixes.
    """
    chosen: tuple[MemoryFix, ...] = ()
    for single in sorted(singles, key=lambda t: t.gib):
        candidate = single.memory_fixes[0]
        if any(m.kind == candidate.kind for m in chosen) or len(chosen) == most:
            continue
        answer = cost_fixes(costed, *chosen, candidate) if chosen else single
        if answer is None:
            continue
        chosen = (*chosen, candidate)
        if answer.gib <= capacity_gib:
            return answer
    return None


def memory_fixes(plan: Plan) -> Iterator[MemoryFix]:
    """Yield changes of `plan` that may reduce its memory, such as recomputation or a smaller microbatch."""
    yield from _recompute(plan)
    yield from _microbatch(plan)
    yield from _gather(plan)
    yield from _stores(plan)
    yield from _sequence(plan)
    yield from _wider_shard_axis(plan)


def _recompute(plan: Plan) -> Iterator[MemoryFix]:
    if plan.recompute.blocks:
        return
    for op in ("attention.core", "blocks"):
        if op in plan.recompute.ops:
            continue
        ops = (op,) if op == "blocks" else (*plan.recompute.ops, op)
        if op != "blocks" and op not in plan.model.op_names():
            continue

        def change(plan: Plan, ops: tuple[str, ...] = ops) -> Plan:
            return replaced(plan, recompute=Recompute(ops=ops))

        text = sentence("recompute", ", ".join(ops))
        yield MemoryFix("recompute", " ".join(text.split()), change, _write(plan, plan.recompute.cause, text))


def _microbatch(plan: Plan) -> Iterator[MemoryFix]:
    batch = plan.batch
    if batch.microbatch_sequences > 1:
        text = sentence("batch", f"{batch.sequences} x {batch.sequence_tokens} tokens microbatch 1")
        yield MemoryFix(
            "batch",
            "microbatch 1",
            lambda p: replaced(p, batch=replaced(p.batch, microbatch_sequences=1)),
            replace(batch.cause, text),
        )


def _gather(plan: Plan) -> Iterator[MemoryFix]:
    if plan.store("params") and not plan.gathers_each_pass():
        text = sentence("gather", "params per pass")
        gather = Gather(per="pass", cause=plan.mesh.cause)
        yield MemoryFix(
            "gather",
            "gather params per pass",
            lambda p: replaced(p, gather=gather),
            _write(plan, plan.gather.cause if plan.gather else None, text),
        )


def _stores(plan: Plan) -> Iterator[MemoryFix]:
    """Yield changes that shard optimizer state, then gradients, then parameters over the data-parallel axes."""
    axes = plan.store("optimizer") or plan.data_axes
    whole = [n for n in reversed(NOUNS) if not plan.store(n)]
    if not axes or any(s.region for s in plan.stores):
        return
    for count in range(1, len(whole) + 1):
        nouns = [n for n in NOUNS if n in whole[:count]]
        stores = tuple(Store(noun=n, axes=axes, cause=plan.mesh.cause) for n in nouns)
        text = sentence("store", f"{', '.join(nouns)} over {', '.join(axes)}")

        def change(plan: Plan, stores: tuple[Store, ...] = stores) -> Plan:
            return replaced(plan, stores=(*plan.stores, *stores))

        yield MemoryFix("store", " ".join(text.split()), change, add(plan.mesh, text))


def _sequence(plan: Plan) -> Iterator[MemoryFix]:
    """Yield the change to sequence parallelism over the axes that shard the ffn dim."""
    names = {a for s in plan.shards if s.dim == "ffn" and not s.region for a in s.axes}
    axes = plan.mesh.in_order(names)
    taken = any(s.dim == "sequence" for s in plan.shards)
    if not axes or taken or plan.batch.sequence_tokens % plan.mesh.size(*axes):
        return
    text = sentence("shard", f"sequence over {', '.join(axes)} in residual")
    shard = Shard(dim="sequence", axes=axes, region="residual", cause=plan.mesh.cause)
    yield MemoryFix(
        "shard", " ".join(text.split()), lambda p: replaced(p, shards=(*p.shards, shard)), add(plan.mesh, text)
    )


def _wider_shard_axis(plan: Plan) -> Iterator[MemoryFix]:
    """Yield meshes that halve a replica axis and double the axis that state is sharded over."""
    stored = plan.store("optimizer")
    replica = [a for a in plan.data_axes if a not in stored]
    if not stored or plan.mesh.views:
        return
    for name in replica:
        size = plan.mesh.size(name)
        if size % 2 == 0:
            sizes = {**plan.mesh.sizes, name: size // 2, stored[-1]: plan.mesh.size(stored[-1]) * 2}
            text = mesh_sentence(sizes)

            def change(plan: Plan, sizes: dict[str, int] = sizes) -> Plan:
                return replaced(plan, mesh=Mesh.of(sizes, plan.mesh.cause))

            yield MemoryFix("mesh", " ".join(text.split()), change, replace(plan.mesh.cause, text))


def _write(plan: Plan, cause: Cause | None, text: str) -> Fix | None:
    return replace(cause, text) if cause is not None else add(plan.mesh, text)
