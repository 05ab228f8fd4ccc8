"""Rule W0305 (warning): a parameter has fewer rows than ranks that store it, so that some ranks store nothing."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import TYPE_CHECKING

from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule
from planc.ir.sharding import ParamSharding, Sharded

if TYPE_CHECKING:
    from planc.costing import CostedPlan

MATRIX = 1e-4
"""Share of the model below which a parameter is ignored, such as vectors."""
WASTE = 0.05


def check(costed: CostedPlan) -> Iterator[Diagnostic]:
    sharded = costed.sharded
    plan = sharded.plan
    if sharded.stack.xla:
        return
    stored = [(p, *_rows(sharded, p)) for p in sharded.params if _ranks(sharded, p) > 1]
    weight = {p.param.name: sharded.model.elements(p.param) * sharded.model.copies(p.param) for p, _, _ in stored}
    short = [s for s in stored if s[1] < s[2] and weight[s[0].param.name] > MATRIX * sharded.model.parameters]
    padding = sum(weight[p.param.name] * (ceil(rows / n) * n / rows - 1) for p, rows, n in stored)
    if not short and padding <= WASTE * sum(weight.values()):
        return
    p, rows, ranks = min(short or stored, key=lambda s: s[1] / s[2])
    cause = plan.cause_of_store("params") or plan.cause_of_store("optimizer")
    names = ", ".join(plan.store("params") or plan.store("optimizer"))
    more = padding / max(1, sum(weight.values()))
    empty = f"{ranks - ceil(rows / ceil(rows / ranks))} of them hold none" if rows < ranks else "a rest is padded"
    yield Diagnostic(
        "W0305",
        f"{p.param.name} has {rows} rows for the {ranks} ranks of {names}: {empty}",
        cause.span if cause else plan.mesh.cause.span,
        help=f"torch divides the first dimension and pads it: {more:.0%} more to store and"
        f" send; store over at most {rows} ranks, with the rest as replicas (`use hsdp over replica, {names}`)",
    )


def _ranks(sharded: Sharded, p: ParamSharding) -> int:
    return sharded.plan.mesh.size(*(p.stored["params"] or p.stored["optimizer"]))


def _rows(sharded: Sharded, p: ParamSharding) -> tuple[int, int]:
    """Return the parameter's rows on one tensor-parallel rank, and the number of ranks that these are stored over."""
    dims = p.param.shape_dims
    inside_expert = dims[0] == ("experts",) and len(dims) > 1
    at = p.on_dim if p.on_dim is not None else int(inside_expert)
    return ceil(sharded.model.shape(p.param)[at] / sharded.plan.mesh.size(*p.compute[at])), _ranks(sharded, p)


RULE = Rule("W0305", check=check)
