"""Rule W0212 (warning): state is sharded over an axis of size 1."""

from __future__ import annotations

from collections.abc import Iterator

from planc.diag.diagnostic import Diagnostic, Related
from planc.diag.registry import Rule
from planc.ir.plan import Plan


def check(plan: Plan) -> Iterator[Diagnostic]:
    reported = set()
    for store in plan.stores:
        if not store.axes or plan.mesh.size(*store.axes) > 1 or store.cause in reported:
            continue
        reported.add(store.cause)
        others = ", ".join(f"{a.name} {a.size}" for a in plan.mesh.axes if a.size > 1) or "none"
        yield Diagnostic(
            "W0212",
            f"{store.noun} are stored over {' and '.join(store.axes)}, which is 1 rank: whole copies everywhere",
            store.cause.span,
            help=f"axes with more ranks: {others}; give {store.axes[-1]} some of them, or leave the sentence out",
            related=(Related(plan.mesh.cause.span, f"{plan.mesh.devices} devices, none left for {store.axes[-1]}"),),
        )


RULE = Rule("W0212", check=check)
