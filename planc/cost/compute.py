"""FLOPs, bytes and seconds of the ops of one microbatch on one device."""

from __future__ import annotations

from math import prod

from planc.diag.light import dataclass
from planc.ir.collective import DTYPE_BYTES
from planc.ir.hardware import Chip
from planc.ir.model import Model, Op, Section
from planc.ir.plan import Kernel, Plan, Quantize
from planc.ir.sharding import OpSharding, Sharded
from planc.sharding.local import local_length, param_elements, tensor_bytes
from planc.sharding.replay import names_op, replay


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
    ops = sharded.ops[section]
    return SectionTime(
        forward_s=sum(op_s(sharded, o, chip) for o in ops),
        backward_s=sum(op_s(sharded, o, chip, backward=True) for o in ops),
        recompute_s=sum(op_s(sharded, o, chip) for o in ops if o.op.name in again) / plan.recompute.every,
        weight_s=sum(op_s(sharded, o, chip, backward=True) / 2 for o in ops if o.op.kind == "matmul"),
    )


def op_s(sharded: Sharded, o: OpSharding, chip: Chip, *, backward: bool = False) -> float:
    """Roofline: the slower of arithmetic and memory traffic, and the launch of its kernels.

    The backward does twice the work of a matmul (both operands' gradients) and 2.5 times that of
    flash attention (it recomputes the scores: Dao 2023, FlashAttention-2).
    """
    flops = op_flops(sharded, o)
    times = 1.0 if not backward else 2.5 if o.op.kind == "attention" else 2.0
    efficiency = chip.attention_efficiency if o.op.kind == "attention" else chip.matmul_efficiency
    arithmetic = times * flops * _s_per_flop(sharded.plan, o.op, chip) / efficiency
    bandwidth = chip.memory_bandwidth_bytes_per_s / chip.devices * chip.memory_efficiency
    traffic = times * op_bytes(sharded, o) / bandwidth
    return max(arithmetic, traffic) + chip.launch_s * (2 if backward else 1)


def _s_per_flop(plan: Plan, op: Op, chip: Chip) -> float:
    """One FLOP at the peak of the dtype it is done in; a mean over the layers when some are quantized."""
    wide = chip.devices / peak_flops_per_s(chip, plan.precision.compute)
    chosen = quantized(plan, op)
    if chosen is None:
        return wide
    kept = sum(end - begin for begin, end in chosen.kept_layers) / plan.model.layers
    return kept * wide + (1 - kept) * chip.devices / peak_flops_per_s(chip, chosen.dtype)


def quantized(plan: Plan, op: Op) -> Quantize | None:
    """The `quantize` sentence that an op falls under."""
    if op.kind != "matmul":
        return None
    for q in plan.quantize:
        if any(names_op(w, op) for w in q.ops) and not any(names_op(w, op) for w in q.kept):
            return q
    return None


def peak_flops_per_s(chip: Chip, dtype: str) -> float:
    """The dense peak of a dtype; a chip without a rate for it computes in the next wider one."""
    order = [dtype, *(["float8"] if dtype == "float4" else []), "bf16", "fp16", "fp32"]
    return next(chip.flops_per_s[d] for d in order if d in chip.flops_per_s)


def op_flops(sharded: Sharded, o: OpSharding) -> float:
    """Forward FLOPs on one device for one microbatch: two per multiply-add of the index space.

    Attention multiplies each row with the keys it sees and its weights with as many values.
    """
    if o.op.kind == "matmul":
        dims = _index_dims(sharded.model, o)
        return 2.0 * prod(_local(sharded, o, d) for d in dims)
    if o.op.kind == "attention":
        rows = prod(_local(sharded, o, d) for d in ("batch", "sequence", "heads"))
        context = _mean_context(o.op, sharded.plan.batch.sequence_tokens) * imbalance(sharded.plan, o)
        return 2.0 * rows * context * _widths(sharded.model, o.op)
    return 0.0


def _widths(model: Model, op: Op) -> int:
    """A head's width for queries and keys, and for values."""
    query, value = model.tensor[op.inputs[0]].dims[-1], model.tensor[op.output].dims[-1]
    return model.sizes[query] + model.sizes[value]


def _mean_context(op: Op, sequence: int) -> float:
    """Keys that a row sees, on average: causal, at most a window back."""
    window = min(op.window or sequence, sequence)
    return window - window * window / (2 * sequence)


def imbalance(plan: Plan, o: OpSharding) -> float:
    """Work of the busiest rank over the mean when rows of a causal sequence are divided.

    n ranks with rows in order: the last sees (2n - 1) / n of the mean; one piece from each end of the
    sequence (`balance = headtail`) makes it even.
    """
    n = plan.mesh.size(*o.layout.get("sequence", ()))
    even = plan.attention is not None and plan.attention.balance == "headtail" and _passes_keys(plan.attention)
    return 1.0 if n == 1 or even else (2 * n - 1) / n


def _passes_keys(kernel: Kernel) -> bool:
    return kernel.method in ("ring", "all_gather")


def op_bytes(sharded: Sharded, o: OpSharding) -> float:
    """Bytes through device memory: every input, parameter and output once.

    The loss goes over fp32 logits three times (maximum, sum, gradient).
    """
    plan = sharded.plan
    names = [n for n in (*o.op.inputs, o.op.output) if n != "loss"]
    total = sum(tensor_bytes(plan, n, o.needs(n, sharded.model.tensor[n].dims)) for n in names)
    for name in o.op.params:
        if o.op.kind == "matmul":
            total += param_elements(plan, sharded.param[name]) * DTYPE_BYTES[plan.precision.compute]
    if o.op.kind == "loss":
        total *= 3 * 4 / DTYPE_BYTES[plan.precision.compute]
    return total


def _index_dims(model: Model, o: OpSharding) -> tuple[str, ...]:
    groups = [model.tensor[o.op.inputs[0]].dims, *(model.param[p].dims for p in o.op.params)]
    return tuple(dict.fromkeys(d for dims in groups for d in dims))


def _local(sharded: Sharded, o: OpSharding, dim: str) -> float:
    return local_length(sharded.plan, dim, o.layout.get(dim, ()))


def model_flops_per_token(model: Model, sequence_tokens: int) -> float:
    """6 per matmul parameter that a token uses, and causal attention: three times the forward's work.

    A token uses `top_k` of the experts. Sliding windows count the keys they see.
    """
    total = 0.0
    for section, ops in model.ops.items():
        copies = model.layers_of(section) if section in model.blocks else 1
        for op in ops:
            if op.kind == "matmul":
                matrices = [model.param[p] for p in op.params if len(model.param[p].shape_dims) > 1]
                total += copies * sum(6.0 * model.elements(p) * model.share(p) for p in matrices)
            elif op.kind == "attention":
                work = 2.0 * model.sizes["heads"] * _widths(model, op) * _mean_context(op, sequence_tokens)
                total += copies * 3.0 * work
    return total
