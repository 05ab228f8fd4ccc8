"""Rule E0304 (error): an override (a sentence about single parameters) shards unevenly or uses one axis twice."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.edits import divisors
from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule
from planc.ir.plan import Plan
from planc.sharding.propagate import override_of


def check(plan: Plan) -> Iterator[Diagnostic]:
    reported = set()
    for param in plan.model.params:
        override = override_of(plan, param)
        if override is None or override.cause in reported:
            continue
        for dim, axes in override.layout.items():
            ranks = plan.mesh.size(*axes)
            length = plan.model.sizes.get(dim, 0)
            twice = next((a for d, other in override.layout.items() if d != dim for a in axes if a in other), "")
            if twice or length % ranks:
                reported.add(override.cause)
                yield Diagnostic(
                    "E0304",
                    f"axis `{twice}` would divide two dims of {param.name}"
                    if twice
                    else f"{dim} {length} of {param.name} over {' x '.join(axes)} = {ranks} ranks:"
                    f" {length / ranks:g} each",
                    override.cause.span,
                    help="an axis divides one dim of a parameter"
                    if twice
                    else f"sizes that divide {length}: {', '.join(map(str, divisors(length, 64)))}",
                )
                break


RULE = Rule("E0304", check=check)
