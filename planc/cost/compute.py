"""FLOPs, bytes and seconds of the ops of one microbatch on one device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import ceil, prod

from planc.diag.fast_dataclass import dataclass
from planc.ir.collective import DTYPE_BYTES
from planc.ir.hardware import Chip
from planc.ir.model import Model, Op, Section
from planc.ir.plan import Kernel, Plan, Quantize
from planc.ir.sharding import OpSharding, Sharded
from planc.sharding.local import local_length, param_elements, tensor_bytes
from planc.sharding.recompute import names_op, replay
from planc.sharding.stage_assignment import microbatches_each


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
        products = sum(_matmuls(sharded, o, chip, backward=backward))
        return products + _casts_s(sharded, o, chip, backward=backward) + _biases_s(sharded, o, chip, backward=backward)
    if o.op.kind == "attention":
        return attention_s(sharded, o, chip, backward=backward)
    traffic = op_bytes(sharded, o) * BACKWARD_BYTES.get(o.op.kind, 1.0) if backward else op_bytes(sharded, o)
    return traffic / memory_rate(chip) + chip.launch_s


BACKWARD_BYTES = {"norm": 1.5, "elementwise": 5 / 3, "embedding": 2.0, "loss": 0.0}
"""What the backward of an op moves, in units of its forward; 1 for the others. A norm reads its input and a
gradient and writes one; a gated product reads three and writes two where the forward reads two and writes
one. The loss makes its gradient in the forward (`LOSS_PASSES`)."""
LOSS_PASSES = 4
"""Times that the loss goes over fp32 logits: the copy, maximum and sum, the gradient."""


def memory_rate(chip: Chip) -> float:
    """Bytes per second of one device's memory, with its efficiency."""
    return chip.memory_bandwidth_bytes_per_s / chip.devices * chip.memory_efficiency


def weights_s(sharded: Sharded, o: OpSharding, chip: Chip) -> float:
    """Seconds of the part of a matmul's backward that only its weights' gradient takes."""
    return _matmuls(sharded, o, chip, backward=True)[1]


# Matmuls.


@dataclass(frozen=True, slots=True)
class Gemm:
    """One matrix product on one device: `groups` of [m, k] x [k, n]."""

    m: float
    n: float
    k: float
    groups: float = 1.0

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k * self.groups

    @property
    def elements(self) -> float:
        """Of the two inputs and the output."""
        return self.groups * (self.m * self.k + self.k * self.n + self.m * self.n)


def gemm_of(sharded: Sharded, o: OpSharding) -> Gemm:
    """The product that a matmul's forward is: rows of its input by columns of its weight.

    Dims that input, weight and output share (experts) count the products.
    """
    key = ("gemm", o.op.name, o.op.output)
    known: Gemm | None = sharded.plan.memo.get(key)
    if known is not None:
        return known
    model = sharded.model
    taken = model.tensor[o.op.inputs[0]].dims
    made = model.tensor[o.op.output].dims
    weight = tuple(dict.fromkeys(d for p in o.op.params for d in model.param[p].dims))
    sizes = {d: _local(sharded, o, d) for d in dict.fromkeys((*taken, *weight))}
    known = Gemm(
        m=prod(sizes[d] for d in taken if d not in weight),
        n=prod(sizes[d] for d in weight if d not in taken),
        k=prod(sizes[d] for d in weight if d in taken and d not in made),
        groups=prod(sizes[d] for d in weight if d in taken and d in made),
    )
    sharded.plan.memo[key] = known
    return known


def gemm_s(gemm: Gemm, chip: Chip, s_per_flop: float, element_bytes: float) -> float:
    """Seconds of one product: the slower of arithmetic and memory traffic, and a launch.

    Starting and ending a tile takes as long as `matmul_depth` more steps of the contraction, less what runs
    beside another tile's steps: at most half of the time. The last wave of tiles leaves `matmul_tail` of the
    cores' time unused (NVIDIA, "Matrix Multiplication Background User's Guide": tile and wave quantization).
    """
    depth = 1 + chip.matmul_depth / (chip.matmul_depth + gemm.k)
    tail = 1.0
    if chip.matmul_tail:
        tiles = gemm.groups * ceil(gemm.m / TILE_ROWS) * ceil(gemm.n / TILE_COLUMNS)
        tail += chip.matmul_tail * max(1, chip.cores) / tiles
    arithmetic = gemm.flops * s_per_flop * depth * tail
    traffic = gemm.elements * element_bytes / memory_rate(chip)
    return max(arithmetic, traffic) + chip.launch_s


TILE_ROWS, TILE_COLUMNS = 128, 256
"""Of a matmul's output, the tile that one core makes: the usual one of large products."""


def fused_of(sharded: Sharded, o: OpSharding) -> tuple[Gemm, float]:
    """The product that a matmul is part of, and its share of it by columns.

    Products of one input are run as one, with their columns side by side, where they belong to one module:
    query, key and value; gate and up (Megatron-Core's `linear_qkv` and `linear_fc1`). One launch, one wave of
    tiles, one cast of the input, and the input's gradient contracts over all columns.
    """
    memo, key = sharded.plan.memo, ("fused", o.op.name, o.op.output)
    if key not in memo:
        for ops in sharded.ops.values():
            memo.update(_fused(sharded, [other for other in ops if other.op.kind == "matmul"]))
    known: tuple[Gemm, float] = memo[key]
    return known


def _fused(sharded: Sharded, matmuls: list[OpSharding]) -> dict[tuple[str, str, str], tuple[Gemm, float]]:
    """For each matmul of a section: those with the same input, module, dtype and size, as one."""
    alike: dict[object, list[tuple[Op, Gemm]]] = {}
    for o in matmuls:
        gemm = gemm_of(sharded, o)
        same = (o.op.inputs, _parent(o.op), id(quantized(sharded.plan, o.op)), gemm.m, gemm.k, gemm.groups)
        alike.setdefault(same, []).append((o.op, gemm))
    found = {}
    for parts in alike.values():
        columns = sum(gemm.n for _, gemm in parts)
        for op, gemm in parts:
            whole = Gemm(gemm.m, columns, gemm.k, gemm.groups)
            found["fused", op.name, op.output] = whole, gemm.n / columns if columns else 1.0
    return found


def _parent(op: Op) -> str:
    return op.module.rpartition(".")[0]


def _matmuls(sharded: Sharded, o: OpSharding, chip: Chip, *, backward: bool) -> tuple[float, ...]:
    """Seconds of the forward's product, or of the backward's two: the input's gradient and the weight's."""
    gemm, share = fused_of(sharded, o)
    one = s_per_flop(sharded.plan, o.op, chip)
    size = DTYPE_BYTES[sharded.plan.precision.compute]
    if not backward:
        return (share * gemm_s(gemm, chip, one, size),)
    to_input = Gemm(gemm.m, gemm.k, gemm.n, gemm.groups)
    to_weight = Gemm(gemm.k, gemm.n, gemm.m, gemm.groups)
    return share * gemm_s(to_input, chip, one, size), share * gemm_s(to_weight, chip, one, size)


def _casts_s(sharded: Sharded, o: OpSharding, chip: Chip, *, backward: bool) -> float:
    """Seconds of making narrow copies of a quantized matmul's inputs: read, and written twice.

    Transformer Engine writes each tensor as it is and transposed, since narrow matmuls take one layout alone. A
    scale for a whole tensor is found by reading all of it first.
    The forward casts the input, once for all products of it, and the weight: once a step, or as often as it is
    gathered. The backward casts the gradient of the output.
    """
    chosen = quantized(sharded.plan, o.op)
    if chosen is None:
        return 0.0
    gemm = gemm_of(sharded, o)
    _, share = fused_of(sharded, o)
    weight = gemm.k * gemm.n / _microbatches_a_weight(sharded, o)
    elements = gemm.groups * (gemm.m * gemm.n if backward else share * gemm.m * gemm.k + weight)
    narrow = DTYPE_BYTES.get(chosen.dtype, HALF_A_BYTE)
    kept = sum(end - begin for begin, end in chosen.kept_layers) / sharded.plan.model.layers
    reads = 1 if chosen.tile or chosen.recipe in TILED else 2
    size = reads * DTYPE_BYTES[sharded.plan.precision.compute] + 2 * narrow
    return (1 - kept) * (elements * size / memory_rate(chip) + chip.launch_s)


def _microbatches_a_weight(sharded: Sharded, o: OpSharding) -> float:
    """Microbatches that compute with one copy of a matmul's weight."""
    plan = sharded.plan
    again = plan.gather_per != "step" and any(sharded.param[p].stored["params"] for p in o.op.params)
    return 1.0 if again else float(microbatches_each(plan))


HALF_A_BYTE = 0.5
"""Bytes of a float4."""
TILED = ("blockwise",)
"""Recipes with scales of their own for tiles, without saying the tile's size."""


BIAS_PASSES = {False: 4, True: 2}
"""Passes over the output of several products that have biases, forward and backward: each expert's part is read and
written with its bias added, then again to join the parts; back, the gradient is split and summed (Megatron-Core,
`TEGroupedMLP._apply_bias`). A single product adds its bias as it writes its output."""


def _biases_s(sharded: Sharded, o: OpSharding, chip: Chip, *, backward: bool) -> float:
    """Seconds of the biases of experts, one a group of rows."""
    gemm = gemm_of(sharded, o)
    if gemm.groups == 1 or len(o.op.params) == 1:
        return 0.0
    size = DTYPE_BYTES[sharded.plan.precision.compute]
    return BIAS_PASSES[backward] * gemm.groups * gemm.m * gemm.n * size / memory_rate(chip) + chip.launch_s


def s_per_flop(plan: Plan, op: Op, chip: Chip) -> float:
    """One FLOP at the reached rate of the dtype it is done in; a mean over layers when some are quantized."""
    wide = _s_per_flop(chip, plan.precision.compute)
    chosen = quantized(plan, op)
    if chosen is None:
        return wide
    kept = sum(end - begin for begin, end in chosen.kept_layers) / plan.model.layers
    return kept * wide + (1 - kept) * _s_per_flop(chip, chosen.dtype)


def _s_per_flop(chip: Chip, dtype: str) -> float:
    return chip.devices / (peak_flops_per_s(chip, dtype) * chip.efficiency(dtype))


# Attention.

FLASH_BACKWARD = 2.5
"""Work of flash attention's backward in units of its forward: it makes the scores again (Dao 2023)."""
UNFUSED_BYTES = {False: 9.0, True: 11.0}
"""Bytes moved for each score of unfused attention in 16 bits between its products, forward and backward: read and
written by the softmax and by the dropout (with a byte of mask); then back: dropout, softmax. A product writes or
reads each score once more, beside its arithmetic."""


def attention_s(sharded: Sharded, o: OpSharding, chip: Chip, *, backward: bool) -> float:
    """Seconds of attention's core: one kernel that never stores a score, or products with scores between."""
    plan = sharded.plan
    if plan.attention is not None and plan.attention.method == "unfused":
        return _unfused_s(sharded, o, chip, backward=backward)
    times = FLASH_BACKWARD if backward else 1.0
    peak = peak_flops_per_s(chip, plan.precision.compute) / chip.devices
    arithmetic = times * op_flops(sharded, o) / (peak * attention_efficiency(sharded, o, chip))
    return max(arithmetic, times * op_bytes(sharded, o) / memory_rate(chip)) + chip.launch_s * (2 if backward else 1)


KERNELS = {"triton": 0.5, "cudnn": 1.5}
"""Speed of some kernels of attention beside FlashAttention-2: its predecessor in Triton, and cuDNN's."""
MOST_EFFICIENT = 0.9
EXPONENTIALS = 32
"""Width of a head whose products take as long as the exponentials between them: narrow heads run slower."""
USUAL_WIDTH = 128
"""Of a head; `attention_efficiency` is that of such heads."""


def attention_efficiency(sharded: Sharded, o: OpSharding, chip: Chip) -> float:
    """The fraction of the peak that the plan's kernel reaches with this op's heads."""
    plan = sharded.plan
    speed = KERNELS.get(plan.attention.method, 1.0) if plan.attention else 1.0
    shape = head_share(_widths(sharded.model, o.op) / 2)
    return min(MOST_EFFICIENT, chip.attention_efficiency * speed * shape)


def head_share(width: float) -> float:
    """The efficiency of attention with heads of this width, in units of that with usual ones."""
    return (1 + EXPONENTIALS / USUAL_WIDTH) / (1 + EXPONENTIALS / width)


def _unfused_s(sharded: Sharded, o: OpSharding, chip: Chip, *, backward: bool) -> float:
    """The whole square of scores, masked or not: two products a head each way, and passes over the scores."""
    plan, model = sharded.plan, sharded.model
    rows, heads = (prod(_local(sharded, o, d) for d in dims) for dims in (("sequence",), ("batch", "heads")))
    keys = plan.batch.sequence_tokens
    query, value = (model.sizes[model.tensor[t].dims[-1]] for t in (o.op.inputs[0], o.op.output))
    products = [Gemm(rows, keys, query, heads), Gemm(rows, value, keys, heads)]
    if backward:
        products += [Gemm(rows, query, keys, heads), Gemm(keys, query, rows, heads)]
        products[:2] = [Gemm(rows, keys, value, heads), Gemm(keys, value, rows, heads)]
    one = _s_per_flop(chip, plan.precision.compute)
    products_s = sum(gemm_s(g, chip, one, DTYPE_BYTES[plan.precision.compute]) for g in products)
    return products_s + UNFUSED_BYTES[backward] * heads * rows * keys / memory_rate(chip) + 2 * chip.launch_s


def quantized(plan: Plan, op: Op) -> Quantize | None:
    """The `quantize` sentence that an op falls under."""
    if op.kind != "matmul" or not plan.quantize:
        return None
    key = ("quantized", op.name, op.region)
    if key not in plan.memo:
        plan.memo[key] = _quantized(plan, op)
    found: Quantize | None = plan.memo[key]
    return found


def _quantized(plan: Plan, op: Op) -> Quantize | None:
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

    The loss goes over fp32 logits `LOSS_PASSES` times. Tokens are laid out twice on their way to experts, and
    back: a copy for each choice, or by rank, then by expert.
    """
    plan = sharded.plan
    names = [n for n in (*o.op.inputs, o.op.output) if n != "loss"]
    total = sum(tensor_bytes(plan, n, o.needs(n, sharded.model.tensor[n].dims)) for n in names)
    for name in o.op.params:
        if o.op.kind == "matmul":
            total += param_elements(plan, sharded.param[name]) * DTYPE_BYTES[plan.precision.compute]
    if o.op.kind == "loss":
        total *= LOSS_PASSES * 4 / DTYPE_BYTES[plan.precision.compute]
    if o.op.kind in ("route", "combine"):
        slots = o.op.output if o.op.kind == "route" else o.op.inputs[0]
        total += 2 * tensor_bytes(plan, slots, o.needs(slots, sharded.model.tensor[slots].dims))
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
    known: float | None = model.memo.get(key := ("model_flops_per_token", sequence_tokens))
    if known is None:
        known = model.memo[key] = _model_flops_per_token(model, sequence_tokens)
    return known


def _model_flops_per_token(model: Model, sequence_tokens: int) -> float:
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
