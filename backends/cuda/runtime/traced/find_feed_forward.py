"""Finds the MLP or the experts of a recorded block, and how their weights are stored."""

from __future__ import annotations

from planc.backends.cuda.runtime.traced.find_attention import norm_after, norm_before
from planc.backends.cuda.runtime.traced.flow import REDUCTIONS, Flow, FlowNode
from planc.backends.cuda.runtime.traced.record import ModuleRun
from planc.backends.cuda.runtime.traced.roles import (
    AttentionLayers,
    ExpertLayers,
    FeedForwardLayers,
    Linear,
    UnknownError,
    expert_width,
    params_of,
)
from planc.backends.cuda.runtime.traced.stored_rows import numbers_of, of_first_token

MIXES = (
    *REDUCTIONS,
    "norm",
    "softmax",
    "_softmax",
    "cumsum",
    "sort",
    "topk",
    "roll",
    "flip",
    "conv1d",
    "bmm",
    "einsum",
)
"""Kinds of node that mix elements of a width."""


def second_half(
    flow: Flow, run: ModuleRun, attention: AttentionLayers | None, outside: tuple[str, ...] = ()
) -> FeedForwardLayers | ExpertLayers:
    """Returns the MLP or experts of the block recorded as `run`, from its data flow. Layers of the `attention`, and
    those with parameters in `outside`, are not considered. Raises UnknownError."""
    mine = {*(params_of(attention) if attention is not None else ()), *outside}
    linears = [n for n in flow.nodes if n.linear and n.linear.weight not in mine]
    experts = next((n for n in flow.nodes if n.kind == "experts"), None)
    if experts is not None and not set(map(flow._own, experts.call.params)) & mine:
        return _experts(flow, run, experts, linears, attention)
    return _dense(flow, run, linears, attention)


def _dense(flow: Flow, run: ModuleRun, linears: list[FlowNode], attention: AttentionLayers | None) -> FeedForwardLayers:
    embed = flow.shape(run.taken)[-1]
    downs = [
        n for n in linears if n.linear and n.linear.made == embed and len(flow.back(n.inputs[0], ("linear",))[0]) <= 2
    ]
    downs = [n for n in downs if any(u in linears for u in flow.back(n.inputs[0], ("linear",))[0])]
    if not downs:
        raise UnknownError(f"{run.module}: no feed-forward layer was found in this block")
    down = downs[-1]
    assert down.linear is not None
    ups = [u for u in flow.back(down.inputs[0], ("linear",))[0] if u in linears]
    layers = tuple(u.linear for u in ups if u.linear)
    fused = len(layers) == 1 and layers[0].made == 2 * down.linear.taken
    if len(layers) > 2 or any(n.made != down.linear.taken for n in layers if not fused):
        raise UnknownError(
            f"{down.call.line}: {down.linear.path} takes {down.linear.taken} from layers of other widths"
        )
    mixed = next((n for n in flow.back(down.inputs[0], ("linear",))[1] if n.kind in MIXES), None)
    if mixed is not None:
        raise UnknownError(f"{mixed.call.line}: {mixed.call.function} mixes elements of {down.linear.path}'s input")
    norm = norm_before(flow, ups[0])
    parallel = _parallel(flow, ups[0], attention)
    if len(layers) == 2:
        layers = _gate_first(flow, ups, down)
    rows = _halves(flow, ups[0], down) if fused else ()
    return FeedForwardLayers(layers, down.linear, fused, norm, norm_after(flow, down), rows, parallel)


def _parallel(flow: Flow, layer: FlowNode, attention: AttentionLayers | None) -> bool:
    """True if the layer does not depend on the attention's output, so that both can run in parallel."""
    if attention is None:
        return False
    out = next(n for n in flow.nodes if n.linear and n.linear.weight == attention.out.weight)
    return not flow.depends(layer.inputs[0], out.outputs[0])


def _halves(flow: Flow, layer: FlowNode, down: FlowNode) -> tuple[tuple[int, ...], ...]:
    """Returns the rows of a fused layer's weight for the gate, and those for up."""
    assert layer.linear is not None
    values = numbers_of(flow, layer)
    found = {}
    for value in values:
        rows = of_first_token(values[value], layer.linear.made)
        if len(rows) == layer.linear.made // 2:
            found[rows] = value
    if len(found) != 2:
        raise UnknownError(f"{layer.call.line}: cannot tell which rows of {layer.linear.weight} make the gate")
    products = [n for n in flow.back(down.inputs[0], ("linear",))[1] if n.kind in ("mul", "__mul__")]
    plain = {v for n in products for v in n.inputs}
    return tuple(sorted(found, key=lambda rows: found[rows] in plain))


def _gate_first(flow: Flow, ups: list[FlowNode], down: FlowNode) -> tuple[Linear, ...]:
    """Returns two layers in the order gate, up: the activation is applied to the gate's output."""
    products = [n for n in flow.back(down.inputs[0], ("linear",))[1] if n.kind in ("mul", "__mul__")]
    plain = {v for n in products for v in n.inputs}
    through = sorted(ups, key=lambda u: u.outputs[0] in plain)
    return tuple(u.linear for u in through if u.linear)


def _experts(
    flow: Flow, run: ModuleRun, experts: FlowNode, linears: list[FlowNode], attention: AttentionLayers | None
) -> ExpertLayers:
    params = tuple((flow._own(p), flow.params[p]) for p in experts.call.params)
    number = max((s[0] for _, s in params if len(s) == 3), default=0)
    routers = [n for n in linears if n.linear and n.linear.made == number]
    if not routers:
        raise UnknownError(f"{experts.call.line}: no router computes a score for each of {number} experts")
    router = routers[0]
    assert router.linear is not None
    picked = [flow.shape(v) for v in experts.inputs[1:]]
    top_k = next((n.call.facts.get("k") or flow.shape(n.outputs[0])[-1] for n in flow.nodes if n.kind == "topk"), 0)
    top_k = picked[0][-1] if picked else top_k
    others = [n for n in linears if n is not router]
    gate = next((n.linear for n in others if n.linear and n.linear.made == 1), None)
    others = [n for n in others if n.linear and n.linear.made != 1]
    shared = _dense(flow, run, others, attention) if others else None
    norm, parallel = norm_before(flow, router), _parallel(flow, router, attention)
    biased = any(len(shape) == 2 for _, shape in params)
    if bool(router.linear.bias) != biased or norm is None:
        raise UnknownError(f"{experts.call.line}: its experts have an unsupported router or input")
    if shared is not None and any(layer.bias for layer in (*shared.ups, shared.down)):
        raise UnknownError(f"{experts.call.line}: its shared expert has biases")
    found = ExpertLayers(
        router.linear, number, params, top_k, shared, gate, "", norm, norm_after(flow, experts), parallel
    )
    expert_width(found, flow.shape(run.taken)[-1])
    return found
