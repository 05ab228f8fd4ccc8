"""N0513: the plan fits, and not the upper end of what runs like it have taken."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from planc.checks.cost.w0508_margin import LEFT
from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule

if TYPE_CHECKING:
    from planc.cost import CostedPlan


def check(costed: CostedPlan) -> Iterator[Diagnostic]:
    from planc.calibration.intervals import allocated_gib, held_gib

    memory, plan = costed.memory, costed.sharded.plan
    high, capacity = held_gib(plan, memory).high, memory.capacity_gib
    if high <= capacity or memory.worst.per_device_gib.total > capacity * (1 - LEFT):
        return
    runs = allocated_gib(plan, memory)
    yield Diagnostic(
        "N0513",
        f"up to {high:.1f} GiB may be held of {capacity:.1f} GiB: the tensors of four in five of {runs.runs} published"
        f" runs ({runs.of}) took up to {runs.high / runs.estimate:.2f} times what is predicted",
        plan.cluster.cause.span,
        help="a short run shows what it takes; `recompute`, a smaller microbatch or a wider axis to store over makes"
        " room",
    )


RULE = Rule(
    code="N0513",
    title="may not fit",
    reads="cost",
    why="""A peak is predicted with an error, which published runs of the same class show: `planc check` prints the
interval in which four of five of them lay. Where its upper end is more than the device has, the plan fits by
prediction, and a run like one of those would not have fitted.""",
    bad="""plan example
model     mixtral_8x7b(layers = 4)
batch     64 x 35072 tokens microbatch 1
cluster   1 x h100_node
mesh      fsdp 8
use       fsdp over fsdp
compute   bf16 reduce fp32
""",
    good="""plan example
model     mixtral_8x7b(layers = 4)
batch     64 x 35072 tokens microbatch 1
cluster   1 x h100_node
mesh      fsdp 8
use       fsdp over fsdp
compute   bf16 reduce fp32
recompute blocks
""",
    check=check,
)
