"""E0501: the plan does not fit in a device's memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from dataclasses import replace as replaced

from planc.checks.edits import add, replace, sentence
from planc.cost import Costed, cost_plan
from planc.diag.diagnostic import Diagnostic, Fix, Related
from planc.diag.registry import Rule
from planc.ir.plan import Gather, Plan, Recompute
from planc.sharding import propagate, semantic_collectives


def check(costed: Costed) -> Iterator[Diagnostic]:
    memory, plan = costed.memory, costed.sharded.plan
    worst = memory.worst
    need = worst.per_device_gib
    if need.total <= memory.capacity_gib:
        return
    parts = {k: v for k, v in asdict(need).items() if k != "total" and v >= 0.05}
    shown = ", ".join(f"{name} {gib:.1f}" for name, gib in sorted(parts.items(), key=lambda p: -p[1]))
    help, fix = _mend(costed)
    stage = f"stage {worst.stage}" if len(memory.stages) > 1 else "a device"
    yield Diagnostic(
        "E0501",
        f"{stage} needs {need.total:.1f} GiB of {memory.capacity_gib:.1f} GiB at the {worst.peak_at}",
        plan.cluster.cause.span,
        label=f"{plan.cluster.chip.name}: {memory.capacity_gib:.0f} GiB",
        help=f"parts: {shown}. {help}",
        related=(Related(plan.batch.cause.span, f"{plan.batch.microbatch_sequences} sequences a microbatch"),),
        fix=fix,
    )


def _mend(costed: Costed) -> tuple[str, Fix | None]:
    """The edits that help, each costed; the fastest that fits is offered."""
    tried: list[tuple[float, float, str, Fix | None]] = []
    for title, plan, fix in candidates(costed.sharded.plan):
        sharded = propagate(plan)
        other = cost_plan(sharded, semantic_collectives(sharded))
        tried.append((other.step.time_s, other.memory.per_device_gib.total, title, fix))
    capacity = costed.memory.capacity_gib
    fitting = sorted(t for t in tried if t[1] <= capacity)
    if fitting:
        time_s, gib, title, fix = fitting[0]
        slower = time_s / costed.step.time_s - 1
        return f"`{title}` fits: {gib:.1f} GiB, step time {slower:+.0%}", fix
    helping = sorted((t for t in tried if t[1] < costed.memory.per_device_gib.total), key=lambda t: t[1])
    if helping:
        return f"`{helping[0][2]}` alone brings it to {helping[0][1]:.1f} GiB", None
    return "use more devices, or divide more over the axes there are", None


def candidates(plan: Plan) -> Iterator[tuple[str, Plan, Fix | None]]:
    """Plans with one sentence changed that take less memory."""
    if not plan.recompute.blocks:
        for op in ("attention.core", "blocks"):
            text = sentence("recompute", op)
            changed = replaced(plan, recompute=Recompute(ops=(op,)))
            yield f"recompute {op}", changed, _write(plan, plan.recompute.cause, text)
    if plan.batch.microbatch_sequences > 1:
        batch = replaced(plan.batch, microbatch_sequences=1)
        text = sentence("batch", f"{batch.sequences} x {batch.sequence_tokens} tokens microbatch 1")
        changed = replaced(plan, batch=batch)
        yield "microbatch 1", changed, replace(plan.batch.cause, text)
    if plan.store("params") and plan.gather_per != "pass":
        gather = Gather(per="pass", cause=plan.mesh.cause)
        text = sentence("gather", "params per pass")
        changed = replaced(plan, gather=gather)
        yield "gather params per pass", changed, _write(plan, plan.gather and plan.gather.cause, text)


def _write(plan: Plan, cause: object, text: str) -> Fix | None:
    from planc.ir.base import Cause

    return replace(cause, text) if isinstance(cause, Cause) else add(plan.mesh, text)


RULE = Rule(
    code="E0501",
    title="does not fit in memory",
    reads="cost",
    why="""The sum of parameters, gradients, optimizer state, activations, buffers and what the
runtime holds is more than the device has, at the named moment of the fullest stage. The help shows
the parts and the cheapest change that was found to fit, costed like the plan itself.""",
    bad="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   1 x h100_node
mesh      fsdp 8
use       fsdp over fsdp
""",
    good="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   1 x h100_node
mesh      fsdp 8
use       fsdp over fsdp
recompute blocks
""",
    check=check,
)
