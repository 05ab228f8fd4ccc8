"""Seconds of the ops of one section (a layer, or an end of the model) for one microbatch on one device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from planc.cost.compute.attention import attention_s
from planc.cost.compute.flops import op_bytes
from planc.cost.compute.gemm import matmul_op_s, weights_s
from planc.cost.machine.rates import memory_bytes_per_s
from planc.diag.fast_dataclass import dataclass
from planc.ir.hardware import Chip
from planc.ir.model import Section
from planc.ir.sharding import OpSharding, Sharded
from planc.sharding.recompute import replay


@dataclass(frozen=True, slots=True)
class SectionTime:
    """Seconds of one copy of a section for one microbatch."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    recompute_s: float = 0.0
    weight_s: float = 0.0
    """The part of `backward_s` that only the weights' gradients take: half of a matmul's."""


def section_time(sharded: Sharded, section: Section, chip: Chip) -> SectionTime:
    """All ops of a section, forward, backward and run again."""
    plan = sharded.plan
    again = set(replay(plan, section).ops) if section in plan.model.blocks else set()
    rerun = dispatched_s((op_s(sharded, o, chip) for o in sharded.ops[section] if o.op.name in again), chip)
    return replace(_once_each(sharded, section, chip), recompute_s=rerun / plan.recompute.every)


def _once_each(sharded: Sharded, section: Section, chip: Chip) -> SectionTime:
    """All ops of a section, whatever is run again."""
    key, ours = ("section_time", section), chip is sharded.plan.cluster.chip
    known: SectionTime | None = sharded.memo.get(key) if ours else None
    if known is None:
        ops = sharded.ops[section]
        known = SectionTime(
            forward_s=dispatched_s((op_s(sharded, o, chip) for o in ops), chip),
            backward_s=dispatched_s((op_s(sharded, o, chip, backward=True) for o in ops), chip),
            weight_s=sum(weights_s(sharded, o, chip) for o in ops if o.op.kind == "matmul"),
        )
        if ours:
            sharded.memo[key] = known
    return known


def host_s(sharded: Sharded, section: Section, chip: Chip) -> tuple[float, float]:
    """Of a section's seconds, those that wait for the host: forward and backward, and what is run again."""
    plan, ops = sharded.plan, sharded.ops[section]
    again = set(replay(plan, section).ops) if section in plan.model.blocks else set()
    forward = [op_s(sharded, o, chip) for o in ops]
    backward = [op_s(sharded, o, chip, backward=True) for o in ops]
    rerun = [s for o, s in zip(ops, forward, strict=True) if o.op.name in again]
    wait = dispatched_s(forward, chip) - sum(forward) + dispatched_s(backward, chip) - sum(backward)
    return wait, (dispatched_s(rerun, chip) - sum(rerun)) / plan.recompute.every


def dispatched_s(ops: Iterable[float], chip: Chip) -> float:
    """Seconds of some ops in a row: what their kernels take, or the host's time to ask for them; both where the
    host does the ops itself."""
    seconds = tuple(ops)
    if chip.hosts_itself:
        return sum(seconds) + len(seconds) * chip.dispatch_s
    return max(sum(seconds), len(seconds) * chip.dispatch_s)


def op_s(sharded: Sharded, o: OpSharding, chip: Chip, *, backward: bool = False) -> float:
    """Seconds of one op for one microbatch: its kernels one after the other, each with its launch."""
    if chip is not sharded.plan.cluster.chip:
        return _op_s(sharded, o, chip, backward=backward)
    key = ("op_s", o.op.name, o.op.output, o.op.window, backward)
    known: float | None = sharded.memo.get(key)
    if known is None:
        known = sharded.memo[key] = _op_s(sharded, o, chip, backward=backward)
    return known


def _op_s(sharded: Sharded, o: OpSharding, chip: Chip, *, backward: bool) -> float:
    if o.op.kind == "matmul":
        return matmul_op_s(sharded, o, chip, backward=backward)
    if o.op.kind == "attention":
        return attention_s(sharded, o, chip, backward=backward)
    traffic = op_bytes(sharded, o) * BACKWARD_BYTES.get(o.op.kind, 1.0) if backward else op_bytes(sharded, o)
    return traffic / memory_bytes_per_s(chip) + chip.launch_s


BACKWARD_BYTES = {"norm": 1.5, "elementwise": 5 / 3, "embedding": 2.0, "loss": 0.0}
"""What the backward of an op moves, in units of its forward; 1 for the others. A norm reads its input and a
gradient and writes one; a gated product reads three and writes two where the forward reads two and writes
one. The loss makes its gradient in the forward (`LOSS_PASSES`)."""
