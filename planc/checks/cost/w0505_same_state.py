"""W0505: every data-parallel rank keeps the same optimizer state, and it is large."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace as replaced
from typing import TYPE_CHECKING

from planc.checks.edits import add, sentence
from planc.checks.recost import gib, recost
from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule
from planc.ir.plan import NOUNS, Store

if TYPE_CHECKING:
    from planc.cost import CostedPlan

SHARE = 0.15
"""Share of a device's memory from which replicated state is reported."""


def check(costed: CostedPlan) -> Iterator[Diagnostic]:
    plan, memory = costed.sharded.plan, costed.memory
    state = memory.per_device_gib.optimizer
    nothing = not any(plan.store(n) for n in NOUNS)
    if not nothing or plan.data_parallel == 1 or state <= SHARE * memory.capacity_gib:
        return
    axes = plan.data_axes
    cause = plan.cause_of_shard("batch", axes[0]) or plan.mesh.cause
    other = recost(replaced(plan, stores=(*plan.stores, Store(noun="optimizer", axes=axes, cause=cause))), costed)
    if other is None:
        return
    yield Diagnostic(
        "W0505",
        f"each of the {plan.data_parallel} data-parallel ranks keeps the same {state:.1f} GiB of optimizer state",
        cause.span,
        help=f"dividing it (ZeRO-1) saves {gib(costed) - gib(other):.1f} GiB on each device, step time"
        f" {other.step.time_s / costed.step.time_s - 1:+.1%}",
        fix=add(plan.mesh, sentence("store", f"optimizer over {', '.join(axes)}")),
    )


RULE = Rule(
    code="W0505",
    title="the same optimizer state on every rank",
    reads="cost",
    why="""Data parallelism without any `store` keeps master parameters, gradients and both moments whole
on every rank. Dividing the optimizer's part changes no number of the training and costs one gather of
the parameters a step.""",
    bad="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   4 x h100_node
mesh      dp 8 > tp 4
use       ddp over dp
use       tp over tp
use       sp over tp
compute   bf16 reduce fp32
recompute blocks
""",
    good="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   4 x h100_node
mesh      dp 8 > tp 4
use       zero1 over dp
use       tp over tp
use       sp over tp
compute   bf16 reduce fp32
recompute blocks
""",
    check=check,
)
