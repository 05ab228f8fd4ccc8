"""Rule E0204 (error): no computation is sharded over a mesh axis, so that its ranks repeat the same work."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.edits import add, mesh_sentence, replace, sentence
from planc.diag.diagnostic import Diagnostic, Fix
from planc.diag.registry import Rule
from planc.ir.plan import Plan


def check(plan: Plan) -> Iterator[Diagnostic]:
    used = {a for s in plan.shards for a in s.axes}
    used |= {plan.split.axis} if plan.split else set()
    for axis in plan.mesh.axes:
        if axis.size == 1 or axis.name in used:
            continue
        stored = any(axis.name in s.axes for s in plan.stores)
        what = "divides no computation, only what is stored" if stored else "divides nothing"
        yield Diagnostic(
            "E0204",
            f"axis `{axis.name}` of size {axis.size} {what}: {axis.size} devices would do the same work",
            plan.mesh.cause.span,
            help=f"shard a dim over it, such as `shard batch over {axis.name}`, or leave it out",
            fix=_merged_into_data_axis(plan, axis.name) if plan.data_axes else add(plan.mesh, _batch(axis.name)),
        )


def _merged_into_data_axis(plan: Plan, idle: str) -> Fix | None:
    """Return the edit that merges axis `idle` into the innermost data axis. None if that is impossible, or if the batch
    is not divisible by the result."""
    sizes, home = plan.mesh.sizes, plan.data_axes[-1]
    ranks = plan.data_parallel * sizes[idle] * plan.batch.microbatch_sequences
    if idle in plan.data_axes or plan.batch.sequences % ranks:
        return None
    grown = {name: n * sizes[idle] if name == home else n for name, n in sizes.items() if name != idle}
    return replace(plan.mesh.cause, mesh_sentence(grown))


def _batch(axis: str) -> str:
    return sentence("shard", f"batch over {axis}")


RULE = Rule("E0204", check=check)
