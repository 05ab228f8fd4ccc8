"""Sentences that the XLA target refuses. None is dropped silently; each is reported with its location."""

from __future__ import annotations

from collections.abc import Iterator

from planc.backends.common.refusal import STATE_DTYPES, refused
from planc.backends.common.unsupported import not_lowered, unscaled
from planc.backends.xla.analysis.attention import (
    FUSED,
    LANES,
    balanced,
    hindrances,
    kernel_rows,
    keyed_axes,
    splash_block,
)
from planc.backends.xla.analysis.layouts import in_whole_heads
from planc.backends.xla.analysis.narrow_products import products, recipe, segments
from planc.backends.xla.analysis.offload import saved_on_host
from planc.backends.xla.analysis.pipeline import SCHEDULES, pipelined, shards_of_rows, uneven
from planc.backends.xla.emit.context_parallel import windows
from planc.backends.xla.emit.remat import stacks
from planc.backends.xla.refusals import experts, loss
from planc.diag import Diagnostic
from planc.ir.base import Cause
from planc.ir.model import EXPERTS, ROUTED
from planc.ir.plan import PASSES_KEYS, Plan
from planc.ir.sharding import Sharded

PLAIN = "unfused"
"""The name of attention without a kernel."""


def refusals(sharded: Sharded) -> list[Diagnostic]:
    """Return every reason why the plan in `sharded` cannot be lowered to XLA, in the plan's order."""
    plan = sharded.plan
    if missing := not_lowered(plan, "xla"):
        return missing
    of_plan = (rule(plan) for rule in (_gather, _store_dtypes, _compute_dtypes))
    rules = (_pipeline, _uneven_shards, _experts, _attention, _recompute, _offload, _narrow, loss.chunked)
    found = (d for rule in (*of_plan, *(rule(sharded) for rule in rules)) for d in rule)
    return sorted(dict.fromkeys(found), key=lambda d: d.span)


def notes(plan: Plan) -> list[Diagnostic]:
    """Return N0906 for each sentence of `plan` that names parts to compile: XLA compiles the whole step."""
    causes = dict.fromkeys(compiled.cause for compiled in plan.compiles)
    return [
        Diagnostic("N0906", f"`{cause.via or cause.sentence}`: XLA compiles the whole step as one program", cause.span)
        for cause in causes
    ]


def _refused(cause: Cause, why: str, help: str = "") -> Diagnostic:
    return refused("xla target", cause, why, help=help, label=why)


TWO_PARTS = (
    "jax.vjp computes the gradients of a stage's inputs and weights together; split, it would compute the first twice"
)
TOGETHER = "it gains by ranks that run different actions at a time, and XLA runs one program on all ranks"
APART = {"interleaved_zero_bubble": TWO_PARTS, "zbv": TOGETHER, "dualpipe": TOGETHER, "dualpipev": TOGETHER}
"""Reasons for refusing a schedule. In a program for all ranks (OpenXLA's SPMD partitioning) a tick takes as long as its
slowest rank; per MaxText's authors 1F1B needs several programs (AI-Hypercomputer/maxtext issue 752), which JaxPP runs
for JAX."""
OWN_ORDER = "the order of its actions differs by rank, and XLA runs one program on all ranks"


def _pipeline(sharded: Sharded) -> Iterator[Diagnostic]:
    """Refuse pipelines that cannot run in lockstep, where all ranks run the same program in each tick."""
    plan, split = sharded.plan, sharded.plan.split
    if split is None or not pipelined(plan):
        return
    if split.schedule not in SCHEDULES:
        nearest = f"interleaved_1f1b(chunks = {split.chunks})" if split.chunks > 1 else "1f1b"
        why = APART.get(split.schedule, OWN_ORDER)
        yield _refused(split.cause, why, f"nearest is `as {nearest}`; lower for cuda to keep {split.schedule}")
        return
    if len(plan.model.blocks) > 1:
        why = f"all ranks run one program, and the model has {len(plan.model.blocks)} kinds of layers"
        yield _refused(split.cause, why, "lower the plan for cuda")
    parts, tokens = plan.pipeline * shards_of_rows(sharded), plan.batch.sequence_tokens
    if tokens % parts:
        why = f"its ranks shard the rows of the loss, and {tokens} tokens cannot be split into {parts} equal shards"
        yield _refused(split.cause, why, f"sequences of a multiple of {parts} tokens")
    if plan.gather is not None and plan.gather_per == "microbatch" and plan.store("params"):
        why = "other microbatches run between the forward and the backward of a microbatch"
        yield _refused(plan.gather.cause, why, "`gather params per pass` or `per step`")


def _gather(plan: Plan) -> Iterator[Diagnostic]:
    """Refuse gather buckets and prefetch: a layer is a loop iteration, and XLA's scheduler decides when to gather its
    parameters."""
    gather = plan.gather
    if gather is not None and (gather.bucket > 1 or gather.prefetch):
        why = "a loop gathers the parameters of each layer, and XLA's scheduler decides when"
        yield _refused(gather.cause, why, f"`gather params per {gather.per}`")


def _attention(sharded: Sharded) -> Iterator[Diagnostic]:
    plan, kernel, axes = sharded.plan, sharded.plan.attention, keyed_axes(sharded)
    if kernel is None:
        return
    if kernel.method not in PASSES_KEYS:
        yield from _kernel(sharded, kernel.method, kernel.cause)
        return
    if kernel.kernel is not None and kernel.kernel.method != PLAIN:
        yield from _kernel(sharded, kernel.kernel.method, kernel.kernel.cause)
    if not axes:
        why = "no axis shards the sequence in attention"
        yield _refused(kernel.cause, why, "leave it out, or add `use cp over AXIS`")
    if kernel.method == "ring" and kernel.rotate != "p2p":
        yield _refused(kernel.cause, "the ring sends keys from rank to rank", "leave out `rotate`")
    if kernel.method == "ring" and (windows(sharded) or any(o.op.params for o in sharded.attentions)):
        why = f"attention of {plan.model.family} is more than plain causal attention"
        yield _refused(kernel.cause, why, "`attention.core as all_gather`")
    ranks, tokens = plan.mesh.size(*axes), plan.batch.sequence_tokens
    if balanced(sharded) and tokens % (2 * ranks):
        why = f"{tokens} tokens cannot be split into {2 * ranks} equal chunks, two per rank"
        yield _refused(kernel.cause, why, f"`(balance = none)`, or a multiple of {2 * ranks} tokens")


def _kernel(sharded: Sharded, name: str, cause: Cause) -> Iterator[Diagnostic]:
    """Refuse the attention kernel `name` if the target does not have it, or cannot run it in this layout."""
    plain = f"`attention.core as {PLAIN}`, or leave it out"
    if name == PLAIN:
        if keyed_axes(sharded):
            yield _refused(cause, "it does not say how a rank gets the keys of other ranks", "add `use cp over AXIS`")
        return
    if name not in FUSED:
        nearest = next(hindrances(sharded), None)
        yield _refused(cause, "it has no such kernel", plain if nearest else f"`attention.core as {FUSED[0]}`")
        return
    if found := list(hindrances(sharded)):
        yield from (_refused(cause, why, plain) for why in found)
        return
    block, rows = splash_block(sharded), kernel_rows(sharded)
    if block % LANES or rows % block:
        why = f"{rows} rows of a sequence are no multiple of a block of {block} rows, or {block} is none of {LANES}"
        yield _refused(cause, why, "leave `block` out")


def _recompute(sharded: Sharded) -> Iterator[Diagnostic]:
    """Refuse recomputation that `jax.checkpoint` policies, which save tensors by name, cannot express."""
    plan, cause = sharded.plan, sharded.plan.recompute.cause
    if cause is None:
        return
    if plan.recompute.whole:
        yield _refused(cause, "XLA removes from a recomputation what no gradient reads", "`recompute blocks`")
    if plan.recompute.every == 1:
        return
    runs = [run.section for run in plan.model.runs]
    if len(set(runs)) < len(runs) or "" in stacks(sharded):
        yield _refused(cause, "its loop over layers of one kind does not know their indices", "leave `every` out")
    if pipelined(plan) and plan.split is not None:
        if uneven(plan):
            why = "all ranks run one program, and shorter stages are padded with layers that are skipped"
            yield _refused(cause, why, "give all stages the same number of layers")
        elif any(begin % plan.recompute.every for begin, _ in plan.split.stages):
            why = f"all ranks run one program, and {plan.recompute.every} layers would begin elsewhere on each"
            yield _refused(cause, why, "a number that divides the layers per stage")


def _offload(sharded: Sharded) -> Iterator[Diagnostic]:
    """Refuse offloading in a pipeline, of activations if some layers are not recomputed, and inside experts."""
    plan = sharded.plan
    for sentence in plan.offloads:
        saved = [t for t in sentence.what if t in saved_on_host(sharded)]
        if pipelined(plan):
            why = "the stacked layers of a pipeline and the activations between its stages are sharded over its ranks"
            yield _refused(sentence.cause, why, "leave it out, or use no pipeline")
        elif saved and plan.recompute.every > 1:
            why = "layers that are not recomputed keep on the device what others offload"
            yield _refused(sentence.cause, why, "leave `every` out")
        elif inside := [t for t in saved if sharded.model.tensor[t].region in (ROUTED, EXPERTS)]:
            why = f"{inside[0]} is computed in per-rank code, where XLA cannot offload to the host"
            yield _refused(sentence.cause, why, "offload activations outside the experts")


TILES = "XLA has no matmul with a scale per tile: each tile's part of a sum would be a matmul of its own"
"""Reason for refusing tiles. Only `jax.nn.scaled_matmul` supports block scales, with a cuDNN kernel for Blackwell
GPUs."""


def _narrow(sharded: Sharded) -> Iterator[Diagnostic]:
    """Refuse quantization other than float8 per tensor or row and int8 per row. Refuse quantized experts, linear layers
    with a bias, and in a pipeline linear layers outside the blocks."""
    plan = sharded.plan
    for q in plan.quantize:
        if q.tile or q.recipe == "blockwise":
            yield _refused(q.cause, TILES, f"`{q.dtype}`, with a scale for each row or tensor")
        elif recipe(q) is None:
            yield _refused(q.cause, f"JAX has no matmuls in {q.dtype}", "`float8(rowwise)` or `int8`")
    for o, section, q in products(sharded):
        if o.op.region == EXPERTS:
            why = f"{o.op.name} multiplies the rows of all experts at once"
            yield _refused(q.cause, why, "leave the experts in the compute dtype")
        elif pipelined(plan) and section not in plan.model.blocks:
            why = f"its ranks shard the rows of {o.op.name}, and each would compute scales of its own"
            yield _refused(q.cause, why, f"leave {o.op.name.partition('.')[0]} in the compute dtype")
        elif len(o.op.params) > 1:
            yield _refused(q.cause, f"{o.op.name} has a bias", "leave it in the compute dtype")
    spared = next((q for q in plan.quantize if q.kept_layers), None)
    if spared is None or not segments(plan):
        return
    runs = [run.section for run in plan.model.runs]
    if pipelined(plan):
        why = "all ranks run one program, and the layers kept in the compute dtype differ by rank"
        yield _refused(spared.cause, why, "leave `except layers` out")
    elif plan.recompute.every > 1:
        yield _refused(spared.cause, "its loops over recomputed layers allow no other exceptions", "leave `every` out")
    elif len(set(runs)) < len(runs) or "" in stacks(sharded):
        yield _refused(spared.cause, "its loop over layers of one kind does not know their indices", "leave it out")


def _store_dtypes(plan: Plan) -> Iterator[Diagnostic]:
    """Refuse state in dtypes other than fp32 and bf16, or in another dtype in a region (a part of the model)."""
    for store in plan.stores:
        if store.dtype and store.dtype not in STATE_DTYPES:
            why = f"it stores {store.noun} in {' or '.join(STATE_DTYPES)}, not {store.dtype}"
            yield _refused(store.cause, why, f"`as {STATE_DTYPES[-1]}`, or leave out the dtype")
        elif store.region and store.dtype and store.dtype != plan.store_dtype(store.noun):
            why = f"it stores {store.noun} of all parameters in one dtype, and not those of {store.region} in another"
            yield _refused(store.cause, why, f"`as {store.dtype}` for all, or leave out the dtype")


def _compute_dtypes(plan: Plan) -> Iterator[Diagnostic]:
    cause = plan.precision.cause
    if cause is not None and (why := unscaled(plan)):
        yield _refused(cause, why)
    elif cause is not None and plan.precision.products:
        yield _refused(cause, f"it runs matmuls of fp32 in all their bits, not in {plan.precision.products}")


def _experts(sharded: Sharded) -> Iterator[Diagnostic]:
    for cause, why, help in experts.refused(sharded):
        yield _refused(cause or sharded.plan.mesh.cause, why, help)


def _uneven_shards(sharded: Sharded) -> Iterator[Diagnostic]:
    """Refuse uneven shards. XLA supports any length inside a program, but uneven ranks were only verified for
    vocabularies."""
    plan = sharded.plan
    lengths = {
        **plan.model.sizes,
        "batch": plan.batch.microbatch_sequences * plan.data_parallel,
        "sequence": plan.batch.sequence_tokens,
    }
    for shard in plan.shards:
        whole = {a for r in plan.replicates if r.dim == shard.dim and r.region in ("", shard.region) for a in r.axes}
        parts = plan.mesh.size(*plan.mesh.in_order(set(shard.axes) - whole))
        length = lengths.get(shard.dim, parts)
        if length % parts and shard.dim != "vocab":
            why = f"it shards {shard.dim} evenly, and {length} is no multiple of {parts}"
            yield _refused(shard.cause, why)
        if shard.dim == "head_dim":
            yield from (_refused(shard.cause, why) for why in _parts_of_heads(sharded, shard.axes))


def _parts_of_heads(sharded: Sharded, within: tuple[str, ...]) -> Iterator[str]:
    """Yield why the axes `within`, which shard `head_dim`, cannot shard blocks of whole heads."""
    plan = sharded.plan
    for p in sharded.params:
        for dims, axes in zip(p.param.shape_dims, p.compute, strict=True):
            if dims[-1] == "head_dim" and len(dims) > 1 and {*axes} & {*within}:
                held = in_whole_heads(plan, dims, {"head_dim": axes}).get(dims[0], ())
                if plan.model.sizes[dims[0]] % (parts := plan.mesh.size(*held)):
                    yield f"it shards whole heads, and {plan.model.sizes[dims[0]]} {dims[0]} are no multiple of {parts}"
