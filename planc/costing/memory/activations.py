"""Activation memory of one microbatch (bytes): saved tensors, recomputed tensors, and tensors of the loss."""

from __future__ import annotations

from collections.abc import Container

from planc.costing.compute.attention import scores_of
from planc.costing.compute.flops import op_by_op
from planc.costing.compute.quantize import quantized
from planc.costing.step.offload import saved_tensor_bytes
from planc.diag.fast_dataclass import dataclass
from planc.ir.cache import cached_on
from planc.ir.collective import DTYPE_BYTES
from planc.ir.model import Op, Section
from planc.ir.sharding import OpSharding, Sharded
from planc.sharding.local import head_elements, tensor_bytes
from planc.sharding.recompute import replay, saved_without_recompute
from planc.sharding.redistribute import restrict

FLOAT4_BYTES = 0.5
LOSS_COPIES = {"eager": 3, "divided": 4, "xla": 2}
"""fp32 tensors of the logits' size in the backward of an eager loss: log-probabilities, their gradient and that of the
logits; with a sharded vocab the backward is several ops (`torch.distributed.tensor.parallel.loss`). XLA holds about
two, since it keeps the head's whole gradient until the final sum."""


@dataclass(frozen=True, slots=True)
class Replays:
    """Temporary bytes of the backward: in `blocks` the recomputed tensors of one block, by kind of block, and in `loss`
    the workspace of the loss. `logits` are the saved logits.

    If `together` is True, the tensors and the workspace may exist at the same time, as in XLA, and both are added.
    """

    blocks: dict[Section, float]
    logits: float
    loss: float
    together: bool


def replays_of(sharded: Sharded) -> Replays:
    """Return the temporary bytes of a block's and of the loss's backward, with the recomputation of `sharded`'s plan.

    >>> replays = replays_of(sharded)
    >>> replays.blocks["block"] / 2**20, replays.loss / 2**20  # MiB
    (16.0, 2004.0)
    """
    blocks = {kind: _replayed(sharded, kind) for kind in sharded.plan.model.blocks}
    together = sharded.stack.xla and sharded.stack.policy.sums_live_sets
    return Replays(blocks, _saved_logits(sharded), loss_bytes(sharded), together)


def replay_buffers(replays: Replays, sections: Container[Section]) -> tuple[float, float]:
    """Return the temporary bytes of the last block's and of the loss's backward, on a rank with `sections`.

    A rank with a loss frees the logits before the block's backward, so they are subtracted from the first number.
    `replays` comes from `replays_of`; if it says `together`, the first number is the sum of both and the second 0.

    >>> replay_buffers(Replays({"block": 6.0}, logits=2.0, loss=8.0, together=False), {"block", "last"})
    (4.0, 8.0)
    """
    back = max((size for kind, size in replays.blocks.items() if kind in sections), default=0.0)
    if "last" not in sections:
        return back, 0.0
    if replays.together:
        return back + replays.loss, 0.0
    return max(0.0, back - replays.logits), replays.loss


def _replayed(sharded: Sharded, kind: Section) -> float:
    """Return the bytes of recomputed activations that are allocated during the backward of one block."""
    flying = _gradients(sharded, kind) if op_by_op(sharded) and not sharded.stack.own else 0.0
    if not replay(sharded.plan, kind).ops:
        return flying
    return max(0.0, _block_saved(sharded, kind, everything=True) - _block_saved(sharded, kind)) + flying


def _gradients(sharded: Sharded, kind: Section) -> float:
    """Return the bytes of gradients in the backward of one block's largest activation, run op by op: those of its
    output and inputs, and the block's output with its gradient. The next op has freed the output itself, if it saved
    it."""
    ops, sizes = sharded.ops[kind], _saved_bytes(sharded, kind)
    kept = {name for o in ops for name in o.op.saves}
    most = 0.0
    for o in ops:
        if o.op.kind == "elementwise" and o.op.has_backward:
            most = max(most, sizes[o.op.output] * (1 + len(o.op.inputs) - (o.op.output in kept)))
    return most + 2 * sizes[ops[-1].op.output]


def _logits(sharded: Sharded) -> float:
    """Return the bytes of the saved logits, in the compute dtype."""
    loss = sharded.ops["last"][-1]
    name = loss.op.inputs[0]
    if _in_one_with_head(sharded):
        return 0.0
    layout = restrict(loss.layout, sharded.model.tensor[name].dims)
    if sharded.stack.policy.whole_logits:
        layout = {dim: axes for dim, axes in layout.items() if dim != "vocab"}
    return tensor_bytes(sharded.plan, name, layout)


def _in_one_with_head(sharded: Sharded) -> bool:
    """True if the loss is compiled and one kernel with the head; such a library has kernels for the norms as well."""
    return sharded.stack.policy.fuses_head_and_loss and sharded.plan.compiled("loss") is not None


def _saved_logits(sharded: Sharded) -> float:
    """Return the bytes of the logits that are live from the forward of the loss to its backward; 0 if the loss is in
    chunks."""
    return 0.0 if sharded.stack.policy.frees_logits or sharded.plan.loss_chunks > 1 else _logits(sharded)


def loss_bytes(sharded: Sharded) -> float:
    """Return the bytes that the loss's backward needs in addition to the saved logits.

    The framework's policy in `sharded` says what a compiled or fused loss needs. A loss whose ops run one by one needs
    `LOSS_COPIES` fp32 tensors of the logits' shape. A loss in chunks needs these and the logits for one chunk, and the
    gradient of the head in fp32, to which each chunk adds.

    >>> loss_bytes(sharded) == 4 * 4 * 8192 * 128256 / 8  # four fp32 tensors of a sequence's logits, over tp 8
    True
    """
    if sharded.plan.loss_chunks == 1:
        return _whole_loss_bytes(sharded)
    chunk = (_whole_loss_bytes(sharded) + _logits(sharded)) / sharded.plan.loss_chunks
    return chunk + head_elements(sharded) * DTYPE_BYTES["fp32"]


def _whole_loss_bytes(sharded: Sharded) -> float:
    plan, one = sharded.plan, _logits(sharded)
    kept = sharded.stack.policy.loss
    if plan.compiled("loss"):
        return sharded.stack.policy.fused_loss_copies * one
    if kept == "gradient":
        return one
    if kept == "narrow":
        return LOSS_COPIES["eager"] * one
    if kept != "ops":
        return 0.0 if kept == "in_place" else one * 4 / DTYPE_BYTES[plan.precision.compute]
    divided = bool(sharded.ops["last"][-1].layout.get("vocab")) and not sharded.stack.policy.whole_logits
    made_by = "xla" if sharded.stack.xla else "divided" if divided else "eager"
    copies = LOSS_COPIES[made_by] if divided else sharded.stack.policy.loss_copies or LOSS_COPIES[made_by]
    return copies * one * 4 / DTYPE_BYTES[plan.precision.compute]


def saved_by_section(sharded: Sharded) -> dict[Section, float]:
    """Return the bytes that a device saves of one microbatch for the backward, for one copy of each section of
    `sharded`'s model (`first`, each kind of block, `last`).

    >>> {section: size / 2**20 for section, size in saved_by_section(sharded).items()}  # MiB
    {'block': 476.0, 'first': 0.0625, 'last': 394.5625}
    """
    saved = {kind: _saved_of_block(sharded, kind) for kind in sharded.model.blocks}
    return saved | {section: _section_saved(sharded, section) for section in ("first", "last")}


def _saved_of_block(sharded: Sharded, kind: Section) -> float:
    """Return the bytes that one block saves for its backward: the mean over layers, if only some are recomputed."""
    every = sharded.plan.recompute.every
    some = _block_saved(sharded, kind)
    return some if every == 1 else (some + (every - 1) * _block_saved(sharded, kind, everything=True)) / every


def _block_saved(sharded: Sharded, kind: Section, *, everything: bool = False) -> float:
    """Return the bytes that one block saves for one microbatch. With `everything`, nothing is recomputed."""
    kept = saved_without_recompute(sharded.model, kind) if everything else replay(sharded.plan, kind).saved
    saved, away = _saved_bytes(sharded, kind), sharded.plan.offloaded
    again: Container[str] = () if everything else replay(sharded.plan, kind).ops
    beside = _beside_losses(sharded, kind)
    if not sharded.stack.own:
        kept = (*kept, *(t for t in _saved_outputs(sharded, kind, again) if t not in kept))
        beside += _saved_beside(sharded, kind, again)
    return sum([saved[name] for name in kept if name not in away]) + beside


def _beside_losses(sharded: Sharded, kind: Section) -> float:
    """Return the bytes besides the logits that the loss of a multi-token-prediction module keeps until its backward:
    one fp32 tensor of their size, or what the framework's policy says."""
    losses = [o for o in sharded.ops[kind] if o.op.kind == "loss"]
    if not losses:
        return 0.0
    plan, rules = sharded.plan, sharded.stack.policy
    fp32 = 4 / DTYPE_BYTES[plan.precision.compute]
    each = {"gradient": 0.0, "in_place": 0.0, "narrow": 1.0}.get(rules.loss, fp32)
    if plan.compiled("loss"):
        each = rules.fused_loss_keeps
    return each * sum(_saved_bytes(sharded, kind)[o.op.inputs[0]] for o in losses)


def _saved_outputs(sharded: Sharded, kind: Section, again: Container[str]) -> tuple[str, ...]:
    """Return the outputs of recomputed ops (`again`) that other ops save, if the framework's checkpoint keeps them."""
    keeping = sharded.stack.policy.keeps_outputs
    ops = [o.op for o in sharded.ops[kind]]
    made = {op.output for op in ops if op.name in again and op.name in keeping}
    return tuple(dict.fromkeys(t for op in ops if op.name not in again for t in op.saves if t in made))


def _saved_beside(sharded: Sharded, kind: Section, again: Container[str]) -> float:
    """Return the bytes that the framework saves of one block in addition to what any correct program saves: dropout
    masks after the two residual sums, and the scores of unfused attention (Korthikanti et al. 2022, section 4).

    Ops in `again` are recomputed and save nothing.
    """
    plan = sharded.plan
    dropout = plan.model.family in sharded.stack.policy.dropout
    size, sizes = DTYPE_BYTES[plan.precision.compute], _saved_bytes(sharded, kind)
    total = 0.0
    for o in sharded.ops[kind]:
        if o.op.name in again or (plan.recompute.blocks and again):
            continue
        if o.op.kind == "add" and dropout:
            total += tensor_bytes(plan, o.op.output, restrict(o.layout, sharded.model.tensor[o.op.output].dims)) / size
        if op_by_op(sharded):
            total += _saved_one_by_one(sharded, o, sizes)
        if o.op.kind == "attention" and plan.attention is not None and plan.attention.runs == "unfused":
            total += scores_of(sharded, o) * (2 * size + 1 if dropout else size)
    return total


def _saved_one_by_one(sharded: Sharded, o: OpSharding, sizes: dict[str, float]) -> float:
    """Return the bytes that op `o` saves in addition if it runs as several kernels, given the `sizes` of tensors in the
    compute dtype: a gate's activation, an fp32 copy of a norm's input, and the input of a LoRA update, which is cast to
    the dtype of its matrices and back."""
    if o.op.kind == "elementwise":
        return sizes[o.op.output] * (len(o.op.inputs) > 1) * o.op.has_backward
    if o.op.kind == "norm" and not _in_one_with_head(sharded):
        return sizes[o.op.inputs[0]] * DTYPE_BYTES["fp32"] / DTYPE_BYTES[sharded.plan.precision.compute]
    return sizes[o.op.inputs[0]] if o.op.update else 0.0


def _section_saved(sharded: Sharded, section: str) -> float:
    names = dict.fromkeys(t for o in sharded.ops.get(section, ()) for t in o.op.saves)
    saved = _saved_bytes(sharded, section)
    if section == "last" and (not sharded.stack.own or sharded.plan.loss_chunks > 1):
        saved = {**saved, "logits": _saved_logits(sharded)}
    return sum([saved[name] for name in names])


@cached_on(lambda sharded, section: (sharded.plan.cache, section))
def _saved_bytes(sharded: Sharded, section: str) -> dict[str, float]:
    """Return the bytes of each tensor of `section` if it is saved, in the layout in which its consumer reads it."""
    names = dict.fromkeys(name for o in sharded.ops[section] for name in (*o.op.inputs, o.op.output, *o.op.saves))
    return {name: saved_tensor_bytes(sharded, name, section) * _narrow_factor(sharded, section, name) for name in names}


@cached_on(lambda sharded, section, name: (sharded.layout_cache, (name, section)))
def _narrow_factor(sharded: Sharded, section: str, name: str) -> float:
    """Return the factor on the bytes of tensor `name`: below 1 if it is saved in low precision, else 1.

    Matmuls with a scale per tile save their input in low precision, and so do elementwise ops before them (DeepSeek-AI
    2024, "DeepSeek-V3", arXiv 2412.19437, section 3.3.3). Other recipes save the compute dtype and cast again.
    """
    savers = [o.op for o in sharded.ops[section] if name in o.op.saves]
    dtypes = {_tiled(sharded, op) or _before_tiled(sharded, section, op) for op in savers}
    if len(dtypes) != 1 or "" in dtypes:
        return 1.0
    return {**DTYPE_BYTES, "float4": FLOAT4_BYTES}[dtypes.pop()] / DTYPE_BYTES[sharded.plan.precision.compute]


def _tiled(sharded: Sharded, op: Op) -> str:
    """Return the low-precision dtype in which matmul `op` saves its input; "" if it saves it in the compute dtype."""
    chosen = quantized(sharded.plan, op)
    if chosen is None:
        return ""
    narrow = chosen.tile or chosen.recipe == "blockwise" or sharded.stack.policy.saves_narrow
    return chosen.dtype if narrow else ""


def _before_tiled(sharded: Sharded, section: str, op: Op) -> str:
    """Return the low-precision dtype in which elementwise `op` saves its input, if only matmuls that save this dtype
    read its output; "" otherwise."""
    takers = [o.op for o in sharded.ops[section] if op.output in o.op.inputs]
    dtypes = {_tiled(sharded, taker) for taker in takers} if op.kind == "elementwise" else set()
    return dtypes.pop() if len(dtypes) == 1 else ""
