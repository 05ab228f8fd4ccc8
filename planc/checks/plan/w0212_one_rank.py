"""W0212: state is stored over an axis that has one rank."""

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


RULE = Rule(
    code="W0212",
    title="stored over one rank",
    reads="plan",
    why="""State is divided over the ranks of an axis. When tensor or pipeline parallelism takes every
device, nothing is left to divide it over: launchers that were asked for sharding anyway fail on a
missing sub-mesh, or train with whole copies.""",
    bad="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   1 x h100_node
mesh      fsdp 1 > tp 8
use       fsdp over fsdp
use       tp   over tp
use       sp   over tp
compute   bf16 reduce fp32
recompute blocks
""",
    good="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   1 x h100_node
mesh      tp 8
use       tp   over tp
use       sp   over tp
compute   bf16 reduce fp32
recompute blocks
""",
    check=check,
)
