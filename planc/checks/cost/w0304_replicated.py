"""Rule W0304 (warning): many parameters are replicated over a tensor-parallel axis that could shard them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from planc.checks.edits import add, sentence
from planc.checks.work import repeated_share
from planc.diag.diagnostic import Diagnostic, Fix
from planc.diag.registry import Rule
from planc.ir.plan import Plan
from planc.ir.sharding import ParamSharding, Sharded
from planc.sharding.propagate import override_of

if TYPE_CHECKING:
    from planc.costing import CostedPlan

SHARE = 0.05
"""Norms and routers are always replicated; a larger share was forgotten in the plan."""


def check(costed: CostedPlan) -> Iterator[Diagnostic]:
    sharded = costed.sharded
    plan, model = sharded.plan, sharded.model
    used = {a for p in sharded.params for a in p.axes()}
    for axis in plan.mesh.axes:
        if axis.name not in used or axis.size == 1 or repeated_share(sharded, axis.name) > 0.5:
            continue
        whole = [p for p in sharded.params if axis.name not in p.axes() and _was_forgotten(plan, p, axis.name)]
        elements = {p.param.name: model.elements(p.param) * model.copies(p.param) for p in whole}
        total = sum(elements.values())
        if total <= SHARE * model.parameters:
            continue
        largest = max(whole, key=lambda p: elements[p.param.name])
        fix = _fix(sharded, largest, axis.name)
        causes = [s.cause.span for s in plan.shards if axis.name in s.axes]
        yield Diagnostic(
            "W0304",
            f"{total * 4 / 1e9:.1f} GB of parameters ({total / model.parameters:.0%}) are whole on each of the"
            f" {axis.size} ranks of `{axis.name}`, the largest {largest.param.name}",
            causes[0] if causes else plan.mesh.cause.span,
            help=(f"{fix.title}; " if fix else "")
            + f"a parameter that is whole is kept, updated and used {axis.size} times over",
            fix=fix,
        )


def _was_forgotten(plan: Plan, p: ParamSharding, axis: str) -> bool:
    """True if `axis` could shard the parameter and no override (a sentence about single parameters) matches it."""
    return plan.exists(axis, p.param.region) and override_of(plan, p.param) is None


def _fix(sharded: Sharded, p: ParamSharding, axis: str) -> Fix | None:
    """Return the edit that shards the vocab, ffn or heads dim of the parameter over `axis`, or None."""
    plan = sharded.plan
    free = [d for d in ("vocab", "ffn", "heads") if d in p.param.dims and not any(s.dim == d for s in plan.shards)]
    size = plan.mesh.size(axis)
    legal = [d for d in free if plan.model.sizes[d] % size == 0]
    return add(plan.mesh, sentence("shard", f"{legal[0]} over {axis}")) if legal else None


RULE = Rule("W0304", check=check)
