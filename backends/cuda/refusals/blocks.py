"""Refuses per-block features: attention kernels, recompute, compilation and offload."""

from __future__ import annotations

from collections.abc import Iterator

from planc.backends.common.refusal import Refusal
from planc.backends.cuda.analysis.attention import GROUPED, KERNELS, value_padding
from planc.backends.cuda.analysis.expert_mesh import routed
from planc.backends.cuda.analysis.replays import HEAVY, is_selective, named_again, saved_in
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.emit.blocks import MASKED, recompute_inside, saved_op_kinds
from planc.ir.plan import PASSES_KEYS, Offload
from planc.ir.sharding import Sharded
from planc.sharding.recompute import replay

ON_GPU = ("cudnn", "efficient")
"""Attention kernels that torch has on GPUs only."""


def kernel(sharded: Sharded, roles: AxisRoles) -> Iterator[Refusal]:
    """Refuses an attention kernel that torch does not have on this device, or not for this plan's attention."""
    chosen = sharded.plan.attention
    if chosen is None or not chosen.runs:
        return
    cause = chosen.kernel.cause if chosen.kernel else chosen.cause
    if chosen.runs not in KERNELS:
        yield cause, f"{chosen.runs} has no plain reference on a CPU", f"one of {', '.join(KERNELS)}"
        return
    if chosen.runs in ON_GPU and sharded.plan.cluster.chip.hosts_itself:
        what = f"torch has no {chosen.runs} kernel for a CPU, and would fail in the first step"
        yield cause, what, "`attention.core as flash`, or leave it out"
        return
    if chosen.method == "ring" and chosen.runs != "flash":
        what = "a ring merges its parts by their log-sum-exp, for which it calls flash attention"
        yield cause, what, "`attention.core as flash`, or leave it out"
        return
    if chosen.method == "all_gather" and chosen.runs not in GROUPED:
        what = (
            f"{chosen.runs} needs as many key heads as query heads, so keys would be repeated before they are gathered"
        )
        yield cause, what, "`attention.core as flash`, or leave it out"
        return
    if (
        chosen.runs == "flash"
        and chosen.method != "ring"
        and any(value_padding(sharded.model, o.op) for o in roles.sharded.attentions)
    ):
        what = "torch's flash attention needs queries, keys and values of one head dim, and that of values is smaller"
        yield cause, what, "`attention.core as efficient` on a GPU, or leave it out"
        return
    if chosen.method in PASSES_KEYS:
        return
    if any("sequence" in o.layout for o in roles.sharded.attentions):
        what = "other ranks hold keys, and the sentence does not say how they are exchanged"
        yield chosen.cause, what, "`attention.core as all_gather`, which picks a supported kernel"
    for o in roles.sharded.attentions:
        if o.op.params or (o.op.window and chosen.method not in MASKED):
            what = f"{o.op.name} of {sharded.model.family} has a sliding window, which needs a mask"
            yield chosen.cause, what, f"`attention.core as {MASKED[0]}`"
            return


def saved_outputs(sharded: Sharded, roles: AxisRoles) -> Iterator[Refusal]:
    """Refuses a recompute that torch cannot do: one that saves unsupported outputs, or with a split backward."""
    plan = sharded.plan
    recompute = plan.recompute
    replayed = is_selective(sharded) or recompute.blocks
    if replayed and plan.split is not None and plan.split.splits_backward:
        what = (
            f"{plan.split.schedule} splits the backward: torch would recompute a block in its dgrad, and again "
            "in the wgrad of each group of its weights"
        )
        yield recompute.cause, what, "`recompute attention.core`, or split the layers as 1f1b or interleaved_1f1b"
    elif is_selective(sharded):
        yield from _selective(sharded, roles)
    elif recompute.kept and not recompute.blocks:
        yield (
            recompute.cause,
            "single ops are recomputed, and nothing in them is saved",
            "`recompute blocks except ...`",
        )
    elif recompute.kept and any(o.ring for o in roles.sharded.attentions) and not _keeps_rings_alone(sharded):
        what = "outputs of rings can only be saved on their own, and in blocks that are not compiled"
        yield recompute.cause, what, "`recompute blocks except attention.core`, or `use cp over ... as all_gather`"


def _keeps_rings_alone(sharded: Sharded) -> bool:
    return not sharded.plan.compiled("blocks") and saved_op_kinds(sharded) == ("attention",)


def _selective(sharded: Sharded, roles: AxisRoles) -> Iterator[Refusal]:
    """Refuses features that do not work with a recompute that saves outputs of single modules."""
    plan = sharded.plan
    cause, blocks = plan.recompute.cause, "`recompute blocks`"
    ops = [o.op for kind in sharded.model.blocks for o in sharded.ops[kind]]
    light = [op for op in ops if plan.recompute.blocks and op.kind not in HEAVY and not named_again(sharded, op)]
    if light:
        what = f"a recompute saves outputs of matmuls and attention, and not of {light[0].name}"
        yield cause, what, "`recompute blocks except attention.core`, or except matmuls"
    if len({named_again(sharded, op) for op in ops if routed(op)}) > 1:
        yield cause, "tokens are dispatched again as a whole, or not at all", "recompute all of `moe`, or none of it"
    if any(routed(op) and not named_again(sharded, op) for op in ops):
        yield cause, "a recompute would send tokens to their experts again", blocks
    if roles.context:
        yield cause, "keys and values of other ranks would be gathered again", blocks
    kept = (names for kind in sharded.model.blocks for names in saved_in(sharded, kind).values())
    if any("all_to_all" in names for names in kept):
        yield cause, "DTensor has no single op for an all_to_all whose output a recompute could save", blocks
    if plan.quantize:
        yield cause, "a float8 product is one `autograd.Function`, whose output torch's policies do not see", blocks
    if plan.compiled("blocks"):
        yield cause, "torch's policies see no ops inside a compiled block", blocks


def compiled(sharded: Sharded, roles: AxisRoles) -> Iterator[Refusal]:
    """Refuses `compile blocks` with a split backward, or with a recompute that torch cannot compile inside a block."""
    plan = sharded.plan
    if sentence := plan.compiled("blocks"):
        if plan.split is not None and plan.split.splits_backward:
            what = f"{plan.split.schedule} splits the backward, which a compiled block does not support"
            yield sentence.cause, what, "split the layers as 1f1b or interleaved_1f1b"
        if plan.recompute.ops and not plan.recompute.blocks and not recompute_inside(roles):
            what = (
                "recompute inside a compiled block fails with tensor parallelism or parts that stay eager (torch 2.13)"
            )
            yield sentence.cause, what, "`recompute blocks`, which wraps the compiled block"


def overlapped(sharded: Sharded, roles: AxisRoles) -> Iterator[Refusal]:
    """Refuses `overlap`, unless it is `async_matmul` over the tensor axis and inductor compiles the blocks."""
    compiler = [c.method for c in sharded.plan.compiles if c.what == "blocks"]
    for sentence in sharded.plan.overlaps:
        if sentence.method != "async_matmul":
            yield sentence.cause, f"torch has no {sentence.method} of its own", "`overlap tp as async_matmul`"
        elif (sentence.axis,) not in roles.tensor_parts:
            what = f"{sentence.axis} is not the axis of tensor parallelism"
            yield sentence.cause, what, f"`overlap {roles.tensor[0] if roles.tensor else 'tp'} as async_matmul`"
        elif compiler != ["inductor"]:
            yield (
                sentence.cause,
                "inductor decomposes the matmuls, and blocks are not compiled",
                "`compile blocks as inductor`",
            )


def offloaded(sharded: Sharded, roles: AxisRoles) -> Iterator[Refusal]:
    """Refuses offloads that torch does not have: fully_shard offloads parameters and optimizer state only together, and
    a checkpoint's saved inputs only all together."""
    for sentence in sharded.plan.offloads:
        if not set(sentence.what) & {"params", "optimizer"}:
            yield from _saved_inputs(sharded, sentence)
        elif set(sentence.what) != {"params", "optimizer"}:
            what = "fully_shard stores parameters and optimizer state together"
            yield sentence.cause, what, "`offload params, optimizer to host`"
        elif not roles.uses_fsdp:
            yield sentence.cause, "no axis stores state", "store it over an axis, as in `use fsdp over AXIS`"


def _saved_inputs(sharded: Sharded, sentence: Offload) -> Iterator[Refusal]:
    """Refuses an offload of activations other than all inputs of recomputed blocks: a hook around a checkpoint sees
    only these."""
    plan = sharded.plan
    recompute = plan.recompute
    whole = recompute.blocks and not recompute.kept and not is_selective(sharded) and recompute.every == 1
    saved = {name for kind in sharded.model.blocks for name in replay(plan, kind).saved}
    if not whole or saved != set(sentence.what):
        what = "a hook of torch around a checkpoint sees all inputs of a block, and nothing inside it"
        yield sentence.cause, what, f"`recompute blocks` and `offload {', '.join(sorted(saved))} to host`"
    elif plan.compiled("blocks") or plan.split is not None:
        other = "compiled blocks" if plan.compiled("blocks") else "a pipeline"
        yield sentence.cause, f"not implemented with {other} yet", "leave it out"
