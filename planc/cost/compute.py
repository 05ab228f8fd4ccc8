"""FLOPs, bytes and seconds of the ops of one microbatch on one device."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

from planc.ir.collective import DTYPE_BYTES
from planc.ir.hardware import Chip
from planc.ir.model import Model, Section
from planc.ir.sharding import OpSharding, Sharded
from planc.sharding.local import dim_length, param_elements, tensor_bytes
from planc.sharding.redistribute import restrict
from planc.sharding.replay import replay


@dataclass(frozen=True, slots=True)
class SectionTime:
    """Seconds of one copy of a section for one microbatch."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    recompute_s: float = 0.0


def section_time(sharded: Sharded, section: Section, chip: Chip) -> SectionTime:
    """All ops of a section, forward, backward and run again."""
    again = set(replay(sharded.plan).ops) if section == "block" else set()
    ops = sharded.ops[section]
    return SectionTime(
        forward_s=sum(op_s(sharded, o, chip) for o in ops),
        backward_s=sum(op_s(sharded, o, chip, backward=True) for o in ops),
        recompute_s=sum(op_s(sharded, o, chip) for o in ops if o.op.name in again),
    )


def op_s(sharded: Sharded, o: OpSharding, chip: Chip, *, backward: bool = False) -> float:
    """Roofline: the slower of arithmetic and memory traffic, and the launch of its kernels.

    The backward does twice the work of a matmul (both operands' gradients) and 2.5 times that of
    flash attention (it recomputes the scores: Dao 2023, FlashAttention-2).
    """
    flops = op_flops(sharded, o)
    times = 1.0 if not backward else 2.5 if o.op.kind == "attention" else 2.0
    peak = peak_flops_per_s(chip, sharded.plan.precision.compute) / chip.devices
    efficiency = chip.attention_efficiency if o.op.kind == "attention" else chip.matmul_efficiency
    arithmetic = times * flops / (peak * efficiency)
    bandwidth = chip.memory_bandwidth_bytes_per_s / chip.devices * chip.memory_efficiency
    traffic = times * op_bytes(sharded, o) / bandwidth
    return max(arithmetic, traffic) + chip.launch_s * (2 if backward else 1)


def peak_flops_per_s(chip: Chip, dtype: str) -> float:
    """The dense peak of a dtype; a chip without a rate for it computes in the next wider one."""
    order = [dtype, "bf16", "fp16", "fp32"]
    return next(chip.flops_per_s[d] for d in order if d in chip.flops_per_s)


def op_flops(sharded: Sharded, o: OpSharding) -> float:
    """Forward FLOPs on one device for one microbatch: two per multiply-add of the index space.

    Causal attention does half of 4 * sequence^2 * heads * head_dim per sequence.
    """
    if o.op.kind == "matmul":
        dims = _index_dims(sharded.model, o)
        return 2.0 * prod(_local(sharded, o, d) for d in dims)
    if o.op.kind == "attention":
        sequence = dim_length(sharded.plan, "sequence")
        dims = ("batch", "sequence", "heads", "head_dim")
        return 2.0 * sequence * prod(_local(sharded, o, d) for d in dims)
    return 0.0


def op_bytes(sharded: Sharded, o: OpSharding) -> float:
    """Bytes through device memory: every input, parameter and output once.

    The loss goes over fp32 logits three times (maximum, sum, gradient).
    """
    plan = sharded.plan
    names = [n for n in (*o.op.inputs, o.op.output) if n != "loss"]
    total = sum(tensor_bytes(plan, n, restrict(o.layout, sharded.model.tensor[n].dims)) for n in names)
    for name in o.op.params:
        if o.op.kind == "matmul":
            total += param_elements(plan, sharded.param[name]) * DTYPE_BYTES[plan.precision.compute]
    if o.op.kind == "loss":
        total *= 3 * 4 / DTYPE_BYTES[plan.precision.compute]
    return total


def _index_dims(model: Model, o: OpSharding) -> tuple[str, ...]:
    groups = [model.tensor[o.op.inputs[0]].dims, *(model.param[p].dims for p in o.op.params)]
    return tuple(dict.fromkeys(d for dims in groups for d in dims))


def _local(sharded: Sharded, o: OpSharding, dim: str) -> int:
    plan = sharded.plan
    return ceil(dim_length(plan, dim) / plan.mesh.size(*o.layout.get(dim, ())))


def model_flops_per_token(model: Model, sequence_tokens: int) -> float:
    """6 per matmul parameter and token, and causal attention: 6 * sequence * heads * head_dim a layer."""
    total = 0.0
    for section, ops in model.ops.items():
        copies = model.layers if section == "block" else 1
        for op in ops:
            if op.kind == "matmul":
                total += copies * sum(6.0 * model.elements(model.param[p]) for p in op.params)
            elif op.kind == "attention":
                width = model.sizes["heads"] * model.sizes["head_dim"]
                total += copies * 6.0 * sequence_tokens * width
    return total
