"""Chooses the attention of the emitted JAX program: splash attention, a Pallas kernel, or matmuls with scores in
memory."""

from __future__ import annotations

from collections.abc import Iterator

from planc.backends.xla.analysis.mesh_factors import atoms, fits, parts
from planc.backends.xla.analysis.pipeline import pipelined
from planc.ir.attention_kernel import AttentionKernel
from planc.ir.sharding import OpSharding, Sharded
from planc.sharding.local import dim_length, local_length
from planc.sharding.recompute import replay

FP32_SCORES = AttentionKernel(forward_bytes=12.0, backward_bytes=24.0, replay_bytes=8.0, windows_by_mask=True)
"""Traffic of `jax.nn.dot_product_attention`, and of a ring of such calls: all scores are computed, in fp32. The forward
writes them once and reads them twice (softmax statistics, product with the values). Measured on programs that libtpu
0.0.42.1 compiled for v5p in bf16, with heads of 128 and 2048 to 4096 tokens: 12.2 to 13.1 bytes per score in the
forward and 32 to 34 for the recompute of the scores (8) and the backward together, not counting queries, keys and
values; 4 and 10 times the head width in FLOPs per score."""

LANES = 128
"""Lanes of a TPU vector register. The kernel takes rows and keys in multiples of it; other lengths are padded."""
BLOCKS = {"v6e": 1024, "tpu7x": 1024}
BLOCK = 512
"""Block size of the kernel (rows and keys), by chip, and the default: `sa_block_q` and its siblings in MaxText's
`base.yml` and in its Trillium configs, whose chips have more FLOP/s at the same memory bandwidth."""
FUSED = ("splash", "flash")
"""Values of `attention.core as` that select the kernel; MaxText's `attention=flash` also runs splash on a TPU."""


KERNEL_OUTPUT = "attention.kernel"
"""Checkpoint name of the kernel's output [B, heads, S, D] and of its log-sum-exp. A backward that saves the output of
attention saves these two; the output is a transpose of the first."""


def keyed_axes(sharded: Sharded) -> tuple[str, ...]:
    """Return the axes that shard the sequence in attention: a rank needs keys of the other ranks along these axes."""
    found = {a for o in sharded.attentions for a in o.layout.get("sequence", ())}
    return sharded.plan.mesh.in_order(found)


def rings(sharded: Sharded) -> bool:
    """True if attention passes keys around a ring of the ranks that share a sequence, instead of gathering the keys."""
    return any(o.ring for o in sharded.attentions)


def balanced(sharded: Sharded) -> bool:
    """True if each rank holds one piece from each end of a sequence (load-balanced context parallelism)."""
    kernel = sharded.plan.attention
    return kernel is not None and kernel.from_both_ends and bool(keyed_axes(sharded))


def runs_splash(sharded: Sharded) -> bool:
    """True if the program runs splash attention: the plan selects it, or selects no kernel on TPUs and `hindrances`
    yields no reason against it."""
    chosen = sharded.plan.attention
    if chosen is not None and chosen.runs:
        return chosen.runs in FUSED
    return sharded.plan.cluster.has_tpus and next(hindrances(sharded), None) is None


def hindrances(sharded: Sharded) -> Iterator[str]:
    """Yield the reasons why splash attention cannot run in the layout of `sharded`."""
    plan = sharded.plan
    if not plan.cluster.has_tpus and not plan.cluster.chip.hosts_itself:
        yield f"the kernel is written for TPUs, and not for {plan.cluster.chip.name}"
    if keyed_axes(sharded):
        rows = kernel_rows(sharded)
        if rows % LANES:
            yield f"a rank's {rows:g} rows per call of the kernel are no multiple of {LANES}"
        if any(key_heads_of_others(o, sharded) for o in sharded.attentions):
            yield "a rank has keys besides those of its query heads, and attends to keys of other ranks"
        if pipelined(plan):
            yield "a pipeline is per-rank code, and the kernel's loops over keys of other ranks are not"
    attentions = sharded.attentions if fits(plan) else ()
    if idle := [axis for o in attentions for axis in _idle_axes(sharded, o)]:
        yield f"every rank of {idle[0]} would compute the same attention, and their gradients would be summed"


def kernel_rows(sharded: Sharded) -> int:
    """Return the number of query rows in one call of the kernel. Under context parallelism these are one rank's rows,
    or half of them in a load-balanced ring; otherwise a sequence padded to a multiple of `LANES` (128)."""
    axes = keyed_axes(sharded)
    if not axes:
        return padded_rows(sharded)
    rows = sharded.plan.batch.sequence_tokens // sharded.plan.mesh.size(*axes)
    return rows // 2 if rings(sharded) and balanced(sharded) else rows


def _idle_axes(sharded: Sharded, o: OpSharding) -> Iterator[str]:
    """Yield the axes of the emitted mesh that shard no dim of the attention `o`; all their ranks compute the same."""
    used = {a for axes in o.layout.values() for a in parts(sharded.plan, axes)}
    if sharded.plan.split is not None:
        used.add(sharded.plan.split.axis)
    yield from (a.name for a in atoms(sharded.plan) if a.size > 1 and a.name not in used)


def padded_rows(sharded: Sharded) -> int:
    """Return the rows of a sequence, padded to a multiple of `LANES`."""
    return -(-sharded.plan.batch.sequence_tokens // LANES) * LANES


def splash_block(sharded: Sharded) -> int:
    """Return the block size of the kernel (rows and keys): the plan's number, or the chip's default, halved until the
    block divides the rows of a call."""
    plan = sharded.plan
    if plan.attention is not None and plan.attention.block:
        return plan.attention.block
    block, rows = BLOCKS.get(plan.cluster.chip.name, BLOCK), kernel_rows(sharded)
    while rows % block:
        block //= 2
    return block


def key_heads_of_others(o: OpSharding, sharded: Sharded) -> bool:
    """True if a rank stores key heads that its own query heads of the attention `o` do not use."""
    sizes = sharded.model.sizes
    if "kv_heads" not in sharded.model.tensor[o.op.inputs[1]].dims:
        return False
    here = {d: local_length(sharded.plan, d, o.layout.get(d, ())) for d in ("heads", "kv_heads")}
    return here["kv_heads"] > 1 and here["heads"] * sizes["kv_heads"] != here["kv_heads"] * sizes["heads"]


def attention_kernel(sharded: Sharded) -> AttentionKernel:
    """Return the program's attention kernel with its memory traffic: splash attention, or scores in fp32."""
    if not runs_splash(sharded):
        return FP32_SCORES
    found = sharded.attentions
    return AttentionKernel(
        repeats_keys=any(key_heads_of_others(o, sharded) for o in found),
        pads_values=any(narrow_values(sharded, o) for o in found),
    )


def narrow_values(sharded: Sharded, o: OpSharding) -> bool:
    """True if the values of the attention `o` are narrower than its keys; kernels take them padded with zeros."""
    keys, values = _widths(sharded, o)
    return keys > values


def narrow_keys(sharded: Sharded, o: OpSharding) -> bool:
    """True if the keys of the attention `o` are narrower than its values; kernels take them padded with zeros."""
    keys, values = _widths(sharded, o)
    return keys < values


def _widths(sharded: Sharded, o: OpSharding) -> tuple[int, int]:
    keys, values = (dim_length(sharded.plan, sharded.model.tensor[t].dims[-1]) for t in (o.op.inputs[1], o.op.output))
    return keys, values


def keeps_output(sharded: Sharded) -> bool:
    """True if the backward of some block reuses a saved output of attention instead of running the kernel again."""
    plan, model = sharded.plan, sharded.model
    outputs = {o.op.output for o in sharded.attentions}
    return plan.recompute.every > 1 or any(outputs & {*replay(plan, kind).saved} for kind in model.blocks)
