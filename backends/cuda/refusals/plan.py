"""Refuses the sentences of a plan that torch cannot run, or that planc does not lower to torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from planc.backends.common.refusal import STATE_DTYPES, Refusal, refused
from planc.backends.common.unsupported import unscaled
from planc.backends.cuda.analysis.attention import grouped, value_padding
from planc.backends.cuda.analysis.context import balanced
from planc.backends.cuda.analysis.expert_mesh import routed
from planc.backends.cuda.analysis.fsdp_shard_dim import stored_dim, stored_over, used, user_of
from planc.backends.cuda.analysis.module_placements import Boundary
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.analysis.schedules import SCHEDULES
from planc.backends.cuda.analysis.styles import Styler
from planc.backends.cuda.emit import quantize
from planc.backends.cuda.refusals import blocks, experts, fine_tuning, loss
from planc.diag.diagnostic import Diagnostic
from planc.ir.base import Cause
from planc.ir.model import EXPERTS
from planc.ir.plan import NOUNS, PASSES_KEYS, Replicate, Shard
from planc.ir.sharding import Sharded


def refusals(sharded: Sharded) -> list[Diagnostic]:
    """Returns an error for every sentence of the plan in `sharded` that the cuda target refuses; in no fixed order."""
    roles = AxisRoles(sharded)
    found = (refusal for rule in RULES for refusal in rule(sharded, roles))
    return [refused("cuda target", cause or sharded.plan.mesh.cause, what, help=help) for cause, what, help in found]


def _unsupported_sentences(sharded: Sharded, roles: AxisRoles) -> Iterator[Refusal]:
    """Refuses a `store` sentence for a single part of the model other than the experts: planc checks and costs it, but
    does not lower it yet."""
    for cause in dict.fromkeys(s.cause for s in sharded.plan.stores if s.region not in ("", EXPERTS)):
        yield cause, "not implemented yet", "check and cost take it into account; lower without it"


def _compute_dtypes(sharded: Sharded, roles: AxisRoles) -> Iterator[Refusal]:
    """Refuses fp16, whose small gradients vanish unless the loss is scaled."""
    if why := unscaled(sharded.plan):
        yield sharded.plan.precision.cause, f"{why}, which needs loss scaling", "write `compute bf16`"


def _further_tokens(sharded: Sharded, roles: AxisRoles) -> Iterator[Refusal]:
    """Refuses multi-token prediction (MTP): the emitted loss is next-token prediction only."""
    if sharded.model.sizes.get("mtp_layers"):
        yield sharded.model.cause, "its program has no MTP modules", "leave `mtp_layers` out"


def _tied_embedding(sharded: Sharded, roles: AxisRoles) -> Iterator[Refusal]:
    """Refuses a tied weight that embedding and head would shard differently, because it is one DTensor."""
    tied = {p.param.name for p in sharded.tied}
    heads = [b for b in Styler(sharded, roles).section("last") if tied & set(b.o.op.params)] if roles.tensor else []
    for b in heads:
        name = b.o.op.params[0]
        lookup = used(roles, sharded.param[name])
        if b.rows or b.weight != lookup:
            what = f"{name} is the head's weight too, which {_joined_by_and(roles.tensor)} would shard in another way"
            yield _cause(b, next(iter(b.divided), "vocab")), what, "shard vocab in both, or in neither"


def _stores_apart(sharded: Sharded, roles: AxisRoles) -> Iterator[Refusal]:
    """Refuses parameters, gradients and optimizer state sharded over different axes, or over axes that do not shard the
    tokens: fully_shard shards all state over the same data-parallel axes."""
    plan = sharded.plan
    for noun in NOUNS:
        axes = plan.store(noun)
        if axes and axes != roles.shard:
            what = f"{noun} over {_joined_by_and(axes)} but optimizer over {_joined_by_and(roles.shard) or 'nothing'}"
            yield plan.cause_of_store(noun), what, "store all of them over the same axes, optimizer first"
    strange = [a for a in roles.shard if a not in (*plan.data_axes, *roles.context)]
    if strange:
        what = f"{_joined_by_and(strange)} does not divide the tokens"
        yield plan.cause_of_store("optimizer"), what, f"add `shard batch over {', '.join(roles.shard)}`"


def _store_dtypes(sharded: Sharded, roles: AxisRoles) -> Iterator[Refusal]:
    """Refuses state in several dtypes, or in another dtype than fp32 and bf16. torch keeps gradients and moments in
    their parameter's dtype, and fully_shard wants one dtype for all parameters."""
    plan = sharded.plan
    regions = ("", EXPERTS) if roles.experts.ops else ("",)
    stored = {noun: {plan.store_dtype(noun, region) for region in regions} for noun in NOUNS}
    several = len(set[str]().union(*stored.values())) > 1
    for store in plan.stores:
        if store.dtype and store.dtype not in STATE_DTYPES:
            yield store.cause, f"{store.noun} are stored in fp32 or bf16", "leave out the dtype"
        elif store.dtype not in ("", "fp32") and several:
            others = sorted({d for dtypes in stored.values() for d in dtypes} - {store.dtype})
            pair = f"{store.noun} in {store.dtype} and others in {_joined_by_and(others)}"
            what = f"{pair}, but torch stores all state in one dtype"
            yield store.cause, what, f"`store params, grads, optimizer as {store.dtype}`, or leave out the dtype"


def _buckets(sharded: Sharded, roles: AxisRoles) -> Iterator[Refusal]:
    """Refuses buckets of several layers that do not divide a stage or that hold different kinds of block, and buckets
    or prefetch if no axis shards state."""
    plan = sharded.plan
    gather, layers = plan.gather, plan.bucket_layers
    if gather is None:
        return
    if layers > 1 and (uneven := [end - begin for begin, end in plan.stages if (end - begin) % layers]):
        what = f"{layers} does not divide the {uneven[0]} layers of a stage"
        yield gather.cause, what, "a number of layers that divides those of every stage"
    if layers > 1 and (len(sharded.model.blocks) > 1 or roles.experts.own_mesh):
        what = "blocks of several kinds, or with experts on a mesh of their own, are separate groups"
        yield gather.cause, what, "leave `bucket` out"
    if (layers > 1 or gather.prefetch) and not roles.shard:
        yield gather.cause, "no axis stores state", "store it over an axis, as in `use fsdp over AXIS`"


def _stored_dims(sharded: Sharded, roles: AxisRoles) -> Iterator[Refusal]:
    """Refuses a parameter that FSDP would shard unevenly on another dim than 0: fully_shard pads dim 0 only."""
    for p in sharded.params:
        dim = stored_dim(roles, p)
        if dim == 0:
            continue
        parts = sharded.plan.mesh.size(*stored_over(roles, p))
        length = sharded.model.shape(p.param)[dim] // sharded.plan.mesh.size(*p.compute[dim])
        if length % parts:
            what = f"dimension {dim} of {p.param.name} has {length} rows, which {parts} does not divide"
            yield p.cause, what, "torch pads the first dimension only: leave out `on`"
            return


def _divided_inside(sharded: Sharded, roles: AxisRoles) -> Iterator[Refusal]:
    """Refuses FSDP of a dim with a strided tensor-parallel shard, which fully_shard cannot shard further."""
    for p in sharded.params:
        inside = used(roles, p)
        if roles.uses_fsdp and inside.inner and inside.dim == stored_dim(roles, p):
            user = user_of(roles, p)
            dim, axis = next((d, a) for d in p.param.dims for a in user.layout.get(d, ()) if a in roles.tensor)
            cause = sharded.plan.cause_of_shard(dim, axis, user.op.region)
            what = f"tensor parallelism shards {dim} of {p.param.name}, which is inside the dimension that FSDP shards"
            yield cause or p.cause, what, "shard another dim of it over the tensor axis"
            return


def _tensor_axes(sharded: Sharded, roles: AxisRoles) -> Iterator[Refusal]:
    """Refuses a sentence that names only some of the axes that are merged into one tensor-parallel mesh dimension."""
    sentences: list[Shard | Replicate] = [*sharded.plan.shards, *sharded.plan.replicates]
    parts, alone = [set(part) for part in roles.tensor_parts], _used_alone(sharded, roles)
    for part in roles.tensor_parts:
        for sentence in sentences:
            used = set(part) & set(sentence.axes)
            inside = isinstance(sentence, Shard) and used in parts and not alone
            if used and used != set(part) and not inside:
                named = _joined_by_and(part)
                what = f"{named} are one dimension of torch's mesh, and this names {_joined_by_and(used)} only"
                yield sentence.cause, what, f"name {', '.join(part)} together, or merge the axes"
    if alone:
        what = f"{_joined_by_and(roles.joined[0].axes)} are one dimension of torch's mesh, and an op uses {alone} only"
        yield (
            sharded.plan.mesh.cause,
            what,
            "shard all that the op reads and writes over all of them, or merge the axes",
        )
    if len(roles.tensor_parts) > 1 and (other := _apart_from_parts(sharded, roles)):
        what = f"{_joined_by_and(roles.tensor)} shard different parts of a block, not implemented with {other}"
        yield sharded.plan.mesh.cause, what, "shard both over one of them"


def _used_alone(sharded: Sharded, roles: AxisRoles) -> str:
    """Returns the tensor axes that some op uses (it is sharded or redistributed over them) without the other axes of
    its module's mesh dimension; "" for none."""
    if not roles.joined:
        return ""
    styler = Styler(sharded, roles)
    for b in (b for section in sharded.ops for b in styler.section(section) if not routed(b.o.op)):
        moves = [s.axes for m in (*b.o.redistributions, b.o.settle) if m for s in m.steps]
        divided = [axes for dim, axes in b.o.layout.items() if dim != "batch"]
        for axes in (*moves, *divided):
            if (used := set(axes) & set(roles.tensor)) and used != set(b.axes):
                return _joined_by_and(roles.plan.mesh.in_order(used))
    return ""


def _apart_from_parts(sharded: Sharded, roles: AxisRoles) -> str:
    """Returns the name of a feature in the plan that does not work with several tensor-parallel meshes; "" for none."""
    sections = (b for section in ("first", "last") for b in Styler(sharded, roles).section(section))
    tied = {p.param.name for p in sharded.tied}
    if len({b.axes for b in sections if tied & set(b.o.op.params)}) > 1:
        return "a tied table over two of them"
    found = {"experts": roles.experts.ops, "float8": sharded.plan.quantize, "context parallelism": roles.context}
    return next((name for name, there in found.items() if there), "")


def _context(sharded: Sharded, roles: AxisRoles) -> Iterator[Refusal]:
    """Refuses context parallelism if its axes are not one mesh dimension, if attention has no module of its own or is
    sharded over only some of the axes, or if the balanced chunks would be uneven."""
    plan, axes = sharded.plan, set(roles.context)
    if not axes:
        return
    cause = plan.cause_of_shard("sequence", roles.context[0])
    if not any(axes <= set(f.axes) for f in roles.factors):
        what = f"{_joined_by_and(roles.context)} shard the sequence, but store state separately"
        yield cause, what, "store state over all of them, or over none"
    for kind, ops in sharded.ops.items():
        for o in ops:
            divided = axes & set(o.layout.get("sequence", ()))
            if o.op.kind == "attention" and divided and divided != axes:
                yield (
                    cause,
                    f"{o.op.name} shards the sequence over {_joined_by_and(divided)} only",
                    "shard it over all of them in the same way",
                )
            if o.op.kind == "attention" and divided and not Boundary(o, kind, sharded, roles).alone:
                yield cause, f"{o.op.name} has no module of its own", "give it one, or use ulysses"
    kernel, ranks = plan.attention, plan.mesh.size(*roles.context)
    tokens = plan.batch.sequence_tokens
    if balanced(roles) and tokens % (2 * ranks):
        assert kernel is not None
        what = f"{tokens} tokens do not divide into {2 * ranks} equal chunks, two a rank"
        yield kernel.cause, what, f"`(balance = none)`, or a multiple of {2 * ranks} tokens"


def _heads_and_rows(sharded: Sharded, roles: AxisRoles) -> Iterator[Refusal]:
    """Refuses redistributions over the context axes other than all-gathers of keys and values, and all-to-alls between
    sequence and heads at a linear layer."""
    axes = set(roles.context)
    for kind, ops in sharded.ops.items():
        for o in ops:
            if routed(o.op):
                continue
            b = Boundary(o, kind, sharded, roles)
            for index, move in (*enumerate(o.redistributions), (None, o.settle)):
                steps = [s for s in move.steps if axes & set(s.axes)] if move else []
                keys = o.op.kind == "attention" and index is not None and all(s.kind == "all_gather" for s in steps)
                swaps = b.linear and b.alone and all(s.kind == "all_to_all" and set(s.axes) == axes for s in steps)
                if move is not None and steps and not keys and not swaps:
                    what = f"{move.tensor} would be redistributed over {_joined_by_and(roles.context)} at {o.op.name}"
                    yield move.cause, what, "`use cp` or `use ulysses` over these axes"
                    return


def _attention(sharded: Sharded, roles: AxisRoles) -> Iterator[Refusal]:
    """Refuses ring attention if no axis shards the sequence, or if the emitted ring cannot compute the attention: it
    must be causal, with the same window (or none) in all blocks."""
    kernel = sharded.plan.attention
    if kernel is None or kernel.method not in PASSES_KEYS:
        return
    if not roles.context:
        yield kernel.cause, "no axis shards the sequence in attention", "leave it out, or add `use cp over AXIS`"
        return
    if kernel.rotate != "p2p":
        yield kernel.cause, "the ring sends keys and values from rank to rank", "leave out `rotate`"
    for o in roles.sharded.attentions:
        narrow_keys = value_padding(sharded.model, o.op) < 0
        windows = {other.op.window for other in roles.sharded.attentions}
        if o.ring and (len(windows) > 1 or o.op.params or narrow_keys):
            what = f"{o.op.name} of {sharded.model.family} is more than causal attention in one window"
            yield kernel.cause, what, "`attention.core as all_gather`"
            return


LOCAL_DIMS: dict[str, set[str]] = {
    "embedding": {"vocab", "embed"},
    "loss": {"vocab"},
    "route": set(),
    "combine": set(),
}
"""For kinds of op that cannot work on a shard of every dim, the dims that tensor axes may shard."""
NEVER: dict[str, set[str]] = {"rope": {"sequence"}, "attention": {"sequence"}}
"""Dims that tensor axes must not shard, by kind of op: the op would need the offset of its shard."""


def _tensor_dims(sharded: Sharded, roles: AxisRoles) -> Iterator[Refusal]:
    """Refuses layouts over the tensor axes that no ParallelStyle supports, neither torch's nor an emitted one."""
    styler = Styler(sharded, roles)
    said: set[tuple[Cause | None, str]] = set()
    for section in sharded.ops:
        for b in styler.section(section):
            for cause, what, instead in _unstyled(b):
                if (cause, instead) not in said:
                    said.add((cause, instead))
                    yield cause, what, instead


def _unstyled(b: Boundary) -> Iterator[Refusal]:
    op = b.o.op
    if routed(op):
        return
    joined = next((t for t, whole in op.whole_of.items() if whole and op.kind != "attention"), "")
    if joined and b.divided and not (b.shared_input is not None and _steps_fit_module(b)):
        what = f"the gradient of {joined} would be a sum over the ranks at {op.name}"
        yield _cause(b, b.divided[0]), what, "replicate it: shard other dims"
    for dim in b.divided:
        never = NEVER.get(op.kind, set()) if b.gatherer is None else set()
        if dim in never or dim not in LOCAL_DIMS.get(op.kind, {dim}):
            what = f"there is no parallel style for {op.name} with {dim} sharded"
            yield _cause(b, dim), what, "scope it, as in `shard sequence over tp in residual`"
    moved = next((m for m in (*b.redistributions, b.settle) if m), None)
    if moved and not b.alone and not _steps_fit_module(b):
        what = f"{moved.tensor} would be redistributed at {op.name}, which has no module of its own"
        yield moved.cause, what, "shard it equally in both regions, or give the op a module of its own"
    if b.weight.dim is not None and not (b.linear or op.kind in ("embedding", "attention")):
        what = f"{op.name} uses a sharded {op.params[0]}, which is not the weight of a linear layer"
        yield _cause(b, b.divided[0]), what, "shard another dim"
    if set(b.rows) - {"kv_heads"} and op.kind not in ("matmul", "norm"):
        what = f"{op.name} has a weight of its own, and works on a shard of {b.rows[0]}"
        yield _cause(b, b.rows[0]), what, "shard another dim"
    pairs = [(b.resting(i), b.needed(i)) for i in range(len(op.inputs))] + [(b.made, b.left)]
    if any(one.inner and other.dim is not None and one != other for pair in pairs for one, other in (pair, pair[::-1])):
        what = f"at {op.name} a tensor would be redistributed between a strided shard and another placement"
        yield (moved.cause if moved else None), what, "replicate it in between"


def _steps_fit_module(b: Boundary) -> bool:
    """True if a style of the op's module can issue the op's redistributions: all-gathers of inputs only, and if all
    heads share one input, of that input only."""
    moves = [i for i, move in enumerate(b.redistributions) if move]
    gathers = all(b.forward_kinds(i) == ("all_gather",) for i in moves)
    one = b.shared_input is None or set(moves) <= {b.shared_input}
    return b.at_edge and b.settle is None and gathers and one


def _cause(b: Boundary, dim: str) -> Cause | None:
    return b.sharded.plan.cause_of_shard(dim, b.axes[0], b.o.op.region)


def _grouped_heads(sharded: Sharded, roles: AxisRoles) -> Iterator[Refusal]:
    """Refuses grouped-query attention that shards keys but not queries, or whose local query heads would share
    replicated keys unevenly."""
    sizes = sharded.model.sizes
    for kind, ops in sharded.ops.items():
        for o in ops:
            if o.op.kind != "attention" or not grouped(sharded.model, o.op):
                continue
            divided = {d for d, axes in o.layout.items() if set(axes) & set(roles.tensor)}
            axes = Boundary(o, kind, sharded, roles).axes
            ranks = sharded.plan.mesh.size(*axes)
            cause = sharded.plan.cause_of_shard("heads", axes[0], o.op.region) if axes else None
            if "kv_heads" in divided and "heads" not in divided:
                yield cause, "heads and kv_heads must be sharded equally", "shard both, or neither"
            elif "heads" in divided and "kv_heads" not in divided:
                each, own = sizes["heads"] // sizes["kv_heads"], sizes["heads"] // ranks
                if own % each and each % own:
                    what = f"a rank's {own} heads would use their keys unevenly, of which {each} heads share one"
                    yield cause, what, "shard the heads over another number of ranks"
                elif not Boundary(o, kind, sharded, roles).alone:
                    yield cause, f"{o.op.name} has no module of its own", "shard heads and kv_heads equally"


def _kinds(sharded: Sharded, roles: AxisRoles) -> Iterator[Refusal]:
    """Refuses kinds of block that need different styles for the same module: all blocks share one dict of styles."""
    styler = Styler(sharded, roles)
    kinds = sharded.model.blocks
    every = set(styler.blocks()) if roles.tensor else set()
    if any(set(styler.block(k)) - every for k in kinds if roles.tensor):
        axes = _joined_by_and(roles.tensor)
        what = f"{axes} would shard the blocks of {sharded.model.name} in {len(kinds)} ways"
        yield sharded.plan.mesh.cause, what, f"leave {axes} out"


def _pipeline(sharded: Sharded, roles: AxisRoles) -> Iterator[Refusal]:
    split = sharded.plan.split
    if split is None:
        return
    if split.schedule not in SCHEDULES:
        yield split.cause, f"it has no schedule {split.schedule}", f"one of {', '.join(SCHEDULES)}"
    elif split.splits_backward and sharded.plan.gathers_each_pass():
        what = "a split backward (dgrad, wgrad) loses the gradients of parameters that each pass frees"
        yield split.cause, what, "leave `gather params per pass` out, or split the layers as interleaved_1f1b"
    if any(end <= begin for begin, end in split.stages[1:-1]):
        yield split.cause, "a stage between the first and the last has no layers", "give each at least one"


def _recompute(sharded: Sharded, roles: AxisRoles) -> Iterator[Refusal]:
    plan = sharded.plan
    if plan.recompute.whole:
        yield plan.recompute.cause, "torch stops a recompute when the backward has what it needs", "`recompute blocks`"


def _joined_by_and(names: tuple[str, ...] | list[str] | set[str]) -> str:
    return " and ".join(sorted(names) if isinstance(names, set) else names)


RULES: tuple[Callable[[Sharded, AxisRoles], Iterator[Refusal]], ...] = (
    _unsupported_sentences,
    _compute_dtypes,
    _further_tokens,
    _stores_apart,
    _store_dtypes,
    _buckets,
    _stored_dims,
    _divided_inside,
    _context,
    _heads_and_rows,
    _attention,
    _tensor_axes,
    _tied_embedding,
    _tensor_dims,
    _grouped_heads,
    _kinds,
    _pipeline,
    _recompute,
    experts.refused,
    fine_tuning.refused,
    quantize.refused,
    loss.refused,
    blocks.kernel,
    blocks.saved_outputs,
    blocks.compiled,
    blocks.overlapped,
    blocks.offloaded,
)
