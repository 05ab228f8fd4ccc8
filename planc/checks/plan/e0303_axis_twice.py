"""Rule E0303 (error): one mesh axis shards two dims of the same op."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.edits import replace
from planc.diag.diagnostic import Diagnostic, Fix, Related
from planc.diag.registry import Rule
from planc.ir.base import Cause
from planc.ir.dims import TOGETHER
from planc.ir.plan import Plan
from planc.sharding.propagate import index_layout


def check(plan: Plan) -> Iterator[Diagnostic]:
    reported = set()
    for ops in plan.model.ops.values():
        for op in ops:
            if op.kind in ("route", "combine"):
                continue  # tokens by place and by slot: the same division, told twice
            for axis, first, second in _axes_used_twice(index_layout(plan, op)):
                key = frozenset((axis, first, second))
                one, two = (plan.cause_of_shard(d, axis, op.region) for d in (first, second))
                if key in reported or one is None or two is None:
                    continue
                reported.add(key)
                scope = "in residual" if "sequence" in (first, second) else "in a region"
                yield Diagnostic(
                    "E0303",
                    f"axis `{axis}` would divide both {first} and {second} in {op.name}",
                    two.span,
                    help=f"an axis divides one dim of an op; scope one of them, such as `{scope}`",
                    related=(Related(one.span, f"{first} is divided here"),),
                    fix=_in_residual_only(two if second == "sequence" else one) if scope == "in residual" else None,
                )


def _in_residual_only(cause: Cause) -> Fix | None:
    """Return the edit that limits the `shard sequence` sentence at `cause` to the residual stream."""
    plain = " in " not in cause.sentence and not cause.via
    return replace(cause, f"{cause.sentence} in residual") if plain else None


def _axes_used_twice(layout: dict[str, tuple[str, ...]]) -> Iterator[tuple[str, str, str]]:
    home: dict[str, str] = {}
    for dim, axes in layout.items():
        for axis in axes:
            if axis in home and {home[axis], dim} not in TOGETHER:
                yield axis, home[axis], dim
            home.setdefault(axis, dim)


RULE = Rule("E0303", check=check)
