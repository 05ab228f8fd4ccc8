"""Splits a recorded block into two halves: attention, MLP or experts, or opaque code, which planc does not shard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from planc.backends.cuda.runtime.traced.find_attention import attention_of
from planc.backends.cuda.runtime.traced.find_feed_forward import second_half
from planc.backends.cuda.runtime.traced.flow import Flow
from planc.backends.cuda.runtime.traced.record import ForwardRecord, ModuleRun
from planc.backends.cuda.runtime.traced.roles import (
    AttentionLayers,
    BlockLayers,
    Code,
    ExpertLayers,
    FeedForwardLayers,
    Norm,
    Shape,
    UnknownError,
    params_of,
)

SUMS = ("add", "__add__", "add_", "__iadd__", "__radd__")
SCALES = ("mul", "__mul__", "__rmul__", "mul_", "dropout", "to", "type", "float", "type_as", "contiguous", "clone")
"""Functions of one tensor, between half a block and the residual stream, that do not mix tokens."""
Half = AttentionLayers | FeedForwardLayers | ExpertLayers | Code


@dataclass(frozen=True)
class FoundHalf:
    """A recorded block: the run of its module, and the data flow of the calls inside."""

    record: ForwardRecord
    run: ModuleRun
    flow: Flow
    params: Mapping[str, Shape]
    """Parameters of the block, by their names relative to the block."""


def found_block(record: ForwardRecord, run: ModuleRun, params: Mapping[str, Shape], batch: int) -> FoundHalf:
    """Returns the block recorded as `run` with the data flow of its calls. `params` are the shapes of the model's
    parameters by name, and `batch` is the number of sequences."""
    prefix = f"{run.module}."
    own = {n.removeprefix(prefix): s for n, s in params.items() if n.startswith(prefix)}
    return FoundHalf(record, run, Flow(record, run, params, prefix, batch), own)


def blocks_of(found: list[FoundHalf]) -> tuple[BlockLayers, ...]:
    """Returns the layers of each block. All attentions of a model must have equal widths, and so must all MLPs and all
    experts: those that differ from most become opaque code."""
    blocks = [_block_of(f) for f in found]
    for width in (_of_attention, _of_feed_forward, _of_experts):
        seen = Counter(w for b in blocks if (w := width(b)) is not None)
        for number, block in enumerate(blocks):
            if (here := width(block)) is not None and here != seen.most_common(1)[0][0]:
                blocks[number] = _as_code(found[number], block, width is _of_attention)
    return tuple(blocks)


def _of_attention(block: BlockLayers) -> tuple[int, ...] | None:
    a = block.heads
    return None if a is None else (a.heads, a.kv_heads, a.head_dim, a.value_dim)


def _of_feed_forward(block: BlockLayers) -> tuple[int, ...] | None:
    return (block.second.down.taken,) if isinstance(block.second, FeedForwardLayers) else None


def _of_experts(block: BlockLayers) -> tuple[int, ...] | None:
    e = block.second
    if not isinstance(e, ExpertLayers):
        return None
    return (e.experts, e.top_k, *sorted(prod(s) for _, s in e.params), e.shared.down.taken if e.shared else 0)


def _as_code(found: FoundHalf, block: BlockLayers, first: bool) -> BlockLayers:
    """Returns `block` with its attention (if `first`, else its second half) as opaque code."""
    why = "its widths differ from those of most blocks"
    half = block.attention if first else block.second
    assert half is not None
    run = next((r for r in _halves(found) if _within(half, _own(found, r))), None)
    if run is None or not _are_added(found, _halves(found)):
        return _whole(found, why)
    code = _code(found, run, why)
    return (
        replace(block, attention=code) if first else replace(block, second=replace(code, parallel=_is_parallel(half)))
    )


def _is_parallel(half: Half) -> bool:
    return not isinstance(half, AttentionLayers) and half.parallel


def _within(half: Half, path: str) -> bool:
    """True if all layers of `half` are in the module at `path`; its norms may be outside."""
    norms = {n for norm in (half.before, half.after) for n in (params_of(norm) if norm is not None else ())}
    return all(n.startswith(f"{path}.") for n in _inside(half) - norms)


def _block_of(found: FoundHalf) -> BlockLayers:
    """Returns the layers of a block; parts that are not recognized become opaque code."""
    run, own = found.run, found.params
    try:
        attention = attention_of(found.flow, run)
        second = second_half(found.flow, run, attention)
    except UnknownError as error:
        return _in_halves(found, str(error))
    rest = [n for n in own if n not in params_of(attention) | params_of(second)]
    if not rest:
        return BlockLayers(attention, second)
    return _in_halves(found, f"parameters with no known role: {', '.join(rest)}")


def _whole(found: FoundHalf, why: str) -> BlockLayers:
    """Returns the block as one piece of opaque code, for the reason `why`."""
    lines = [c.line for c in found.record.calls[found.run.begin : found.run.end] if c.module == found.run.module]
    line = lines[0] if lines else found.record.calls[found.run.begin].line
    return BlockLayers(Code("", tuple(found.params.items()), returns=found.run.returns, line=line, why=why), None)


def _in_halves(found: FoundHalf, why: str) -> BlockLayers:
    """Returns the block split into the modules that its code calls, each of which is recognized or opaque code."""
    runs = _halves(found)
    inside = {p for r in runs for p in found.params if p.startswith(f"{_own(found, r)}.")}
    norms = {p for node in found.flow.nodes if node.norm for p, _ in node.norm.params}
    if not 1 <= len(runs) <= 2 or set(found.params) - inside - norms or not _are_added(found, runs):
        return _whole(found, why)
    halves = [_half(found, r, why) for r in runs]
    if len(halves) == 2 and not isinstance(halves[1], FeedForwardLayers | ExpertLayers | Code):
        halves[1] = _code(found, runs[1], "attention is in the second half")
    first: Half = halves[0]
    if isinstance(first, FeedForwardLayers | ExpertLayers):
        if len(halves) == 1:
            return BlockLayers(None, first)
        first = _code(found, runs[0], "a feed-forward layer is in the first half")
    second = halves[1] if len(halves) == 2 else None
    assert not isinstance(second, AttentionLayers)
    if isinstance(second, Code) and found.flow.depends(runs[1].taken, runs[0].given) is False:
        second = replace(second, parallel=True)
    return BlockLayers(first, second)


def _halves(found: FoundHalf) -> list[ModuleRun]:
    """Returns the runs of the modules, except norms, that the block's code calls and that map hidden states to hidden
    states."""
    record, block = found.record, found.run
    size = prod(record.shapes[block.taken])
    runs = [
        r
        for r in record.runs
        if r.caller == block.module
        and block.begin <= r.begin < r.end <= block.end
        and r.taken >= 0
        and r.given >= 0
        and prod(record.shapes[r.taken]) == prod(record.shapes[r.given]) == size
        and any(p.startswith(f"{_own(found, r)}.") for p in found.params)
    ]
    return [r for r in runs if not found.flow._is_norm(r)]


def _are_added(found: FoundHalf, halves: list[ModuleRun]) -> bool:
    """True if the block only adds the output of each half to the residual stream."""
    flow, block = found.flow, found.run
    own = [n for n in flow.nodes if n.kind != "norm" and n.call.module == block.module]
    plain = all(n.kind in SUMS or (n.kind in SCALES and len(n.inputs) == 1) for n in own)
    sums = [n for n in own if n.kind in SUMS]
    ends = plain and len(sums) == len(halves) and any(block.given in n.outputs for n in sums)
    return ends and all(_joins(flow, h.given) and _leaves(flow, h.taken, block.taken) for h in halves)


def _joins(flow: Flow, value: int) -> bool:
    """True if the tensor `value` is added to the residual stream, with at most a norm or scaling before."""
    while users := flow.users.get(value, []):
        if all(u.kind in SUMS for u in users):
            return True
        if len(users) > 1 or users[0].kind not in (*SCALES, "norm"):
            return False
        value = users[0].outputs[0]
    return False


def _leaves(flow: Flow, value: int, stream: int) -> bool:
    """True if tensor `value` is the residual stream, or a scaled or normed copy. `stream` is the block's input."""
    while value != stream:
        maker = flow.maker.get(value)
        if maker is None or maker.kind in SUMS:
            return maker is not None
        if maker.kind not in (*SCALES, "norm") or len(maker.inputs) != 1:
            return False
        value = maker.inputs[0]
    return True


def _own(found: FoundHalf, run: ModuleRun) -> str:
    return run.module.removeprefix(f"{found.run.module}.")


def _half(found: FoundHalf, run: ModuleRun, why: str) -> Half:
    """Returns the layers of the half that `run` ran; opaque code if they are not recognized, for the reason `why`."""
    path, flow = _own(found, run), found.flow
    mine = {p for p in found.params if p.startswith(f"{path}.")}
    attention = None
    try:
        attention = attention_of(flow, found.run)
        if mine and mine <= _inside(attention):
            return attention
    except UnknownError as error:
        why = str(error)
    try:
        outside = tuple(n for n in found.params if n not in mine)
        second = second_half(flow, found.run, attention, outside)
        if mine <= _inside(second):
            return second
        rest = ", ".join(sorted(mine - _inside(second)))
        why = f"parameters with no known role: {rest}"
    except UnknownError:
        pass
    return _code(found, run, why)


def _inside(half: Half) -> set[str]:
    return params_of(half) - {""}


def _code(found: FoundHalf, run: ModuleRun, why: str) -> Code:
    path = _own(found, run)
    calls = found.record.calls[run.begin : run.end]
    line = next((c.line for c in calls if c.module == run.module), calls[0].line)
    params = tuple((n, s) for n, s in found.params.items() if n.startswith(f"{path}."))
    before = _norm_before(found.flow, run.taken)
    return Code(path, params, before, _norm_after(found.flow, run.given), returns=run.returns, line=line, why=why)


def _norm_before(flow: Flow, value: int) -> Norm | None:
    while (maker := flow.maker.get(value)) is not None and len(maker.inputs) == 1:
        if maker.kind == "norm":
            return maker.norm
        value = maker.inputs[0]
    return None


def _norm_after(flow: Flow, value: int) -> Norm | None:
    node, _ = flow.ahead(value, ("norm", "linear", "core", "experts", *SUMS))
    return node.norm if node is not None and node.kind == "norm" else None
