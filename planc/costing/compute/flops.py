"""FLOPs and memory traffic of one op on one device, and the model FLOPs by which MFU is defined.

Formulas are described in `docs/reference/cost-model.md`, under "Compute".
"""

from __future__ import annotations

from math import prod

from planc.costing.compute.scan import model_scan_flops, scan_bytes, scan_flops
from planc.ir.cache import Cache, cached_on
from planc.ir.collective import DTYPE_BYTES
from planc.ir.hardware import Chip
from planc.ir.model import Model, Op
from planc.ir.plan import PASSES_KEYS, Plan
from planc.ir.sharding import OpSharding, Sharded
from planc.sharding.local import head_elements, local_length, param_elements, tensor_bytes


def cache_of(sharded: Sharded, chip: Chip) -> Cache:
    """Return the cache of costs in `sharded` if `chip` is its plan's chip, else a new one."""
    return sharded.cache if chip is sharded.plan.cluster.chip else Cache()


def op_by_op(sharded: Sharded) -> bool:
    """True if the ops of a block run one by one: the framework of `sharded` does so, and the plan compiles no
    blocks.

    >>> op_by_op(sharded)
    False
    """
    return sharded.stack.policy.eager and sharded.plan.compiled("blocks") is None


def op_flops(sharded: Sharded, o: OpSharding) -> float:
    """Return the forward FLOPs of op `o` on one device for one microbatch: two per multiply-add.

    Attention counts the keys that a query attends to, and as many values. Opaque code has the FLOPs that were counted
    when it was read. Ops that only move bytes have none. `sharded` has the sizes of the dims.

    >>> op_flops(sharded, ops["ffn.gate"]) == 2 * 8192 * 8192 * 28672 / 8  # tokens x width x ffn, over tp 8
    True
    """
    if o.op.kind == "matmul":
        dims = _index_dims(sharded.model, o)
        updates = sum(2.0 * m * n * k for m, n, k in update_products(sharded, o))
        return 2.0 * prod(local_dim(sharded, o, d) for d in dims) + updates
    if o.op.kind == "attention":
        rows = prod(local_dim(sharded, o, d) for d in ("batch", "sequence", "heads"))
        context = _mean_context(o.op, sharded.plan.batch.sequence_tokens) * imbalance(sharded.plan, o)
        return 2.0 * rows * context * head_widths(sharded.model, o.op)
    if o.op.kind == "scan":
        return scan_flops(sharded, o)
    if o.op.kind == "code":
        return 2.0 * sum(e.copies * prod(local_dim(sharded, o, d) for d in e.dims) for e in o.op.multiply_adds)
    return 0.0


def op_bytes(sharded: Sharded, o: OpSharding) -> float:
    """Return the memory traffic (bytes) of op `o` on one device for one microbatch: each input, parameter and output
    once.

    The loss makes `LOSS_PASSES` passes over fp32 logits, and each chunk of it after the first reads and writes the
    gradient of the head in fp32. Tokens are permuted twice on their way to experts, and twice
    back: once per chosen expert, or by rank and then by expert. A scan is several kernels (`scan_bytes`). `sharded` has
    the layouts.

    >>> op_bytes(sharded, ops["ffn.gate"]) == 2 * (8192 * 8192 + 8192 * 28672 / 8 + 8192 * 28672 / 8)  # bf16
    True
    """
    if o.op.kind == "scan":
        return scan_bytes(sharded, o)
    plan = sharded.plan
    names = [n for n in (*o.op.inputs, o.op.output) if n != "loss"]
    total = sum(tensor_bytes(plan, n, o.needs(n, sharded.model.tensor[n].dims)) for n in names)
    for name in o.op.params:
        if o.op.kind in ("matmul", "code"):
            total += param_elements(plan, sharded.param[name]) * DTYPE_BYTES[plan.precision.compute]
    if o.op.kind == "loss":
        total *= LOSS_PASSES * 4 / DTYPE_BYTES[plan.precision.compute]
        total += 2 * 4 * head_elements(sharded) * (plan.loss_chunks - 1)
    if o.op.kind in ("route", "combine"):
        slots = o.op.output if o.op.kind == "route" else o.op.inputs[0]
        total += 2 * tensor_bytes(plan, slots, o.needs(slots, sharded.model.tensor[slots].dims))
    return total


LOSS_PASSES = 4
"""Passes of the loss over fp32 logits: the copy, maximum and sum, the gradient."""


def imbalance(plan: Plan, o: OpSharding) -> float:
    """Return the ratio of the busiest rank's attention work to the mean, if `plan` shards the sequence at op `o`.

    With a causal mask and n ranks in order, the last rank has (2n - 1) / n of the mean. It is 1 if each rank has one
    chunk from each end of the sequence (`balance = headtail`).

    >>> imbalance(plan, ops["attention.core"])  # the sequence is whole there
    1.0
    """
    n = plan.mesh.size(*o.layout.get("sequence", ()))
    even = plan.attention is not None and plan.attention.balance == "headtail" and plan.attention.method in PASSES_KEYS
    return 1.0 if n == 1 or even else (2 * n - 1) / n


def head_widths(model: Model, op: Op) -> int:
    """Return the columns of a query head plus those of a value head in attention op `op`; `model` has the sizes.

    >>> head_widths(plan.model, ops["attention.core"].op)  # 128 + 128
    256
    """
    query, value = model.tensor[op.inputs[0]].dims[-1], model.tensor[op.output].dims[-1]
    return model.sizes[query] + model.sizes[value]


def _mean_context(op: Op, sequence: int) -> float:
    """Return the mean number of keys that a query attends to, with a causal mask and any sliding window."""
    window = min(op.window or sequence, sequence)
    return window - window * window / (2 * sequence)


def _index_dims(model: Model, o: OpSharding) -> tuple[str, ...]:
    groups = [model.tensor[o.op.inputs[0]].dims, *(model.param[p].dims for p in o.op.weights)]
    return tuple(dict.fromkeys(d for dims in groups for d in dims))


def update_products(sharded: Sharded, o: OpSharding) -> tuple[tuple[float, float, float], ...]:
    """Return the two matmuls of the low-rank update (LoRA) of op `o` on one device as (rows, columns, contraction): the
    input times A, and that times B. () without an update. `sharded` has the local sizes.

    >>> update_products(sharded, ops["ffn.gate"])
    ()
    """
    if not o.op.update:
        return ()
    model = sharded.model
    a, b = (model.param[p].shape_dims for p in o.op.update)
    rank, taken, made = (prod(local_dim(sharded, o, d) for d in dims) for dims in (a[0], a[1], b[0]))
    rows = prod(local_dim(sharded, o, d) for d in model.tensor[o.op.inputs[0]].dims if d not in a[1])
    return (rows, rank, taken), (rows, made, rank)


def local_dim(sharded: Sharded, o: OpSharding, dim: str) -> float:
    """Return the length of `dim` on one device at op `o` of `sharded`: divided by the axes that shard it, rounded up.

    >>> local_dim(sharded, ops["ffn.gate"], "ffn")  # 28672 / 8
    3584
    """
    return local_length(sharded.plan, dim, o.layout.get(dim, ()))


@cached_on(lambda model, sequence_tokens: (model.cache, sequence_tokens))
def model_flops_per_token(model: Model, sequence_tokens: int) -> float:
    """Return the FLOPs per token of a training step as MFU counts them: 6 per active matmul parameter, plus causal
    attention.

    A forward takes 2 FLOPs per parameter, and so does each gradient: of the input and of the weight. Frozen weights
    have no gradient, and neither has an input that depends on no trained parameter. A token uses `top_k` experts.
    Attention is over sequences of `sequence_tokens`; a sliding window counts the keys in it, a scan its state inputs
    and outputs. Opaque code has the multiply-adds counted when it was read, and as many for each gradient.
    Recomputation and embedding lookups do not count. Source: Chowdhery et al. 2022 (PaLM), appendix B, which counts
    both halves of the scores.

    >>> f"{model_flops_per_token(plan.model, 8192) / 1e9:.0f} GFLOP"  # 6 x 69.5 billion, and 32 of attention
    '449 GFLOP'
    """
    total = 0.0
    for section, ops in model.ops.items():
        copies = model.layers_of(section) if section in model.blocks else 1
        for op in ops:
            if op.kind == "matmul":
                matrices = [model.param[p] for p in op.params if len(model.param[p].shape_dims) > 1]
                each = {p.name: _flops_of_parameter(op, p.name) for p in matrices}
                total += copies * sum(each[p.name] * model.elements(p) * model.share(p) for p in matrices)
            elif op.kind == "attention":
                work = 2.0 * model.sizes["heads"] * head_widths(model, op) * _mean_context(op, sequence_tokens)
                total += copies * (3.0 if op.has_backward else 1.0) * work
            elif op.kind == "scan":
                total += copies * (3.0 if op.has_backward else 1.0) * model_scan_flops(model)
            elif op.kind == "code":
                length = {**model.sizes, "batch": 1, "sequence": sequence_tokens}
                work = 2.0 * sum(e.copies * prod(length[d] for d in e.dims) for e in op.multiply_adds)
                total += copies * (1.0 + backward_of_code(op)) * work / sequence_tokens
    return total


def backward_of_code(op: Op) -> float:
    """Return the ratio of backward to forward FLOPs of opaque code `op`: 2; 1 with frozen weights; 0 without a
    backward.

    >>> backward_of_code(ops["ffn.gate"].op)
    2.0
    """
    trained = not op.params or any(name not in op.fixed for name in op.params)
    return 1.0 + trained if op.has_backward else 0.0


def _flops_of_parameter(op: Op, name: str) -> float:
    """Return the FLOPs per token and element of the matrix `name`, forward and backward: 6, less 2 for each gradient
    that is not needed. B of a low-rank update needs that of its input, the output of A, which is trained."""
    to_input = op.inputs[0] not in op.fixed or name in op.update[1:]
    return 2.0 * (1 + to_input + (name not in op.fixed))
