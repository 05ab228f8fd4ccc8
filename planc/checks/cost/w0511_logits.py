"""Rule W0511 (warning): the loss takes a large part of a device's memory."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import TYPE_CHECKING

from planc.checks.edits import add, replace, sentence
from planc.diag.diagnostic import Diagnostic, Fix, Related
from planc.diag.registry import Rule
from planc.ir.plan import Plan

if TYPE_CHECKING:
    from planc.costing import CostedPlan

SHARE = 0.2
"""Share of a device's memory above which the logits are reported."""


def check(costed: CostedPlan) -> Iterator[Diagnostic]:
    from planc.costing.memory.activations import loss_bytes
    from planc.costing.memory.peak import GIB

    sharded = costed.sharded
    plan = sharded.plan
    gib = loss_bytes(sharded) / GIB
    if gib <= SHARE * costed.memory.capacity_gib:
        return
    batch = plan.batch
    fix = _fix(plan)
    helps = [fix.title] if fix else []
    if not sharded.stack.xla and plan.loss_chunks == 1:
        helps.append(f"`loss in {gcd(8, batch.sequence_tokens)} chunks` holds those of one chunk")
    if not sharded.stack.xla and plan.compiled("loss") is None:
        helps.append("on torch, `compile loss` makes their gradient alone")
    yield Diagnostic(
        "W0511",
        f"the loss takes {gib:.1f} GiB of {costed.memory.capacity_gib:.0f} GiB beside the logits of"
        f" {batch.microbatch_sequences} x {batch.sequence_tokens} tokens x {plan.model.sizes['vocab']} words",
        batch.cause.span,
        help="; ".join([*helps, "smaller microbatches, or the vocab over another axis, divide them"]),
        related=(Related(plan.cluster.cause.span, f"{costed.memory.capacity_gib:.0f} GiB a device"),),
        fix=fix,
    )


def _fix(plan: Plan) -> Fix | None:
    batch = plan.batch
    if batch.microbatch_sequences > 1:
        text = f"{batch.sequences} x {batch.sequence_tokens} tokens microbatch 1"
        return replace(batch.cause, sentence("batch", text))
    axes = {a for s in plan.shards if s.dim == "ffn" for a in s.axes} - {
        a for s in plan.shards if s.dim == "vocab" for a in s.axes
    }
    names = plan.mesh.in_order(axes)
    if names and plan.model.sizes["vocab"] % plan.mesh.size(*names) == 0:
        return add(plan.mesh, sentence("shard", f"vocab over {', '.join(names)}"))
    return None


RULE = Rule("W0511", check=check)
