"""Finds the attention of a recorded block: the layers of its queries, keys and values, and the norms around it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from planc.backends.cuda.runtime.traced.flow import REDUCTIONS, Flow, FlowNode
from planc.backends.cuda.runtime.traced.record import ModuleRun, RecordedCall
from planc.backends.cuda.runtime.traced.roles import LINEAR, AttentionLayers, Latent, Linear, Norm, UnknownError
from planc.backends.cuda.runtime.traced.stored_rows import rows_of


@dataclass(frozen=True)
class _Core:
    """The core of attention, softmax(q k^T) v: the numbers of its tensors in the record, and its recorded call."""

    q: int
    k: int
    v: int
    out: int
    call: RecordedCall


def _core(flow: Flow, run: ModuleRun) -> _Core:
    cores = [n for n in flow.nodes if n.kind == "core"]
    if cores:
        node = cores[-1]
        q, k, v = node.inputs[:3]
        return _Core(q, k, v, node.outputs[0], node.call)
    for node in flow.nodes:
        if node.kind not in ("softmax", "_softmax", "sigmoid"):
            continue
        scores, _ = flow.back(node.inputs[0], (*LINEAR, "linear"))
        scores = [s for s in scores if s.linear is None and len(s.inputs) >= 2]
        mixed, _ = flow.ahead(node.outputs[0], LINEAR)
        if scores and mixed is not None and mixed.linear is None and len(mixed.inputs) >= 2:
            q, k = scores[-1].inputs[-2:]
            reached = [v for v in mixed.inputs if not flow.depends(v, node.outputs[0])]
            if reached:
                return _Core(q, k, reached[0], mixed.outputs[0], node.call)
    raise UnknownError(f"{run.module}: no attention over the sequence was found in this block")


def attention_of(flow: Flow, run: ModuleRun) -> AttentionLayers:
    """Returns the attention layers of the block recorded as `run`, from the block's data flow. Raises UnknownError."""
    core = _core(flow, run)
    out, behind = flow.ahead(core.out, ("linear",))
    if out is None or out.linear is None:
        raise UnknownError(f"{core.call.line}: no linear layer takes the output of the attention of {run.module}")
    mixed = next(
        (n for n in behind if n.kind in (*REDUCTIONS, "norm") and flow.depends(out.inputs[0], n.outputs[0])), None
    )
    if mixed is not None:
        raise UnknownError(f"{mixed.call.line}: {mixed.call.function} mixes the heads before {out.linear.path}")
    stops = ("linear",)
    (of_q, on_q), (of_k, on_k), (of_v, _) = (flow.back(v, stops) for v in (core.q, core.k, core.v))
    if not of_q or not of_k or not of_v:
        raise UnknownError(f"{core.call.line}: no linear layer produces the queries, keys and values of {run.module}")
    width = flow.shape(core.q)[-1]
    value_width = flow.shape(core.v)[-1]
    heads = out.linear.taken // value_width
    rotary = any(n.call.beside and n.kind in ("mul", "__mul__", "__rmul__") for n in (*on_q, *on_k))
    q_norm, k_norm = (next((n.norm for n in passed if n.norm), None) for passed in (on_q, on_k))
    sinks = next((p for p in core.call.params if len(flow.params[p]) == 1), "")
    if not sinks:
        sinks = next(
            (p for n in flow.nodes if n.kind == "cat" for p in n.call.params if flow.params[p] == (heads,)), ""
        )
    q, k, v = (nodes[-1].linear for nodes in (of_q, of_k, of_v))
    assert q is not None and k is not None and v is not None
    first = of_q[-1]
    kv_heads = heads
    kinds: tuple[Linear, Linear | None, Linear | None]
    latent = None
    rows: tuple[tuple[int, ...], ...] = ()
    # Latent attention: keys come from two layers, one of which produces the values too.
    if len(of_q) == 1 and len(of_k) == 2 and len(of_v) == 1 and of_v[0] in of_k:
        latent, first = _latent(flow, core, (of_q[0], next(n for n in of_k if n is not of_v[0]), of_v[0]), heads)
        assert first.linear is not None
        kinds, q_norm, k_norm = (first.linear, None, None), None, None
    elif len(of_k) > 1 or len(of_v) > 1 or len(of_q) > 1:
        raise UnknownError(f"{core.call.line}: several linear layers produce queries or keys of {run.module}")
    elif of_q[0] is of_k[0] is of_v[0]:
        total = q.made // width
        kv_heads, kinds = (total - heads) // 2, (q, None, None)
        if (heads + 2 * kv_heads) * width != q.made or kv_heads < 1:
            raise UnknownError(f"{first.call.line}: {q.weight} makes {q.made}, not queries, keys and values together")
        counts = (heads * width, kv_heads * width, kv_heads * width)
        rows = tuple(rows_of(flow, of_q[0], v, n) for v, n in zip((core.q, core.k, core.v), counts, strict=True))
    else:
        if (heads * width != q.made) or k.made % width or v.made % value_width:
            raise UnknownError(f"{first.call.line}: {q.weight} makes {q.made}, which is not {heads} heads of {width}")
        kv_heads, kinds = k.made // width, (q, k, v)
    return AttentionLayers(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=width,
        q=kinds[0],
        k=kinds[1],
        v=kinds[2],
        out=out.linear,
        q_norm=q_norm,
        k_norm=k_norm,
        rotary=rotary,
        rows=rows,
        window=int(core.call.facts.get("window", 0)),
        sinks=flow._own(sinks),
        value_dim=value_width if value_width != width or latent else 0,
        latent=latent,
        before=norm_before(flow, first),
        after=norm_after(flow, out),
    )


def _latent(
    flow: Flow, core: _Core, layers: tuple[FlowNode, FlowNode, FlowNode], heads: int
) -> tuple[Latent, FlowNode]:
    """Returns the latent (DeepSeek's MLA) of keys and values, and the first layer of the queries. `layers` are the one
    that produces queries, the one that produces the latent and the rotary key, and the one that produces keys and
    values from the latent."""
    q, down, up = layers
    norm = norm_before(flow, up)
    source, _ = flow.back(up.inputs[0], ("linear",))
    assert up.linear is not None and down.linear is not None and q.linear is not None
    rope = down.linear.made - up.linear.taken
    normed, _ = flow.back(up.inputs[0], ("norm",))
    if norm is None or source != [down] or rope < 1 or not normed:
        raise UnknownError(f"{up.call.line}: {up.linear.path} makes keys and values from something else than a latent")
    nope, values = flow.shape(core.k)[-1] - rope, flow.shape(core.v)[-1]
    down_rows = tuple(
        rows_of(flow, down, target, count)
        for target, count in ((normed[-1].inputs[0], up.linear.taken), (core.k, rope))
    )
    up_rows = (rows_of(flow, up, core.k, heads * nope), rows_of(flow, up, core.v, heads * values))
    made = Latent(down.linear, norm, up.linear, rope, down_rows, up_rows)
    q_norm = norm_before(flow, q)
    above, _ = flow.back(q.inputs[0], ("linear",))
    if q_norm is None or not above:
        return made, q
    return replace(made, q_norm=q_norm, q_up=q.linear), above[-1]


def norm_before(flow: Flow, node: FlowNode) -> Norm | None:
    """Returns the norm whose output the linear layer `node` reads; None if it reads anything else."""
    value = node.inputs[0]
    while (maker := flow.maker.get(value)) is not None and len(maker.inputs) == 1 and maker.kind != "linear":
        if maker.kind == "norm":
            return maker.norm
        value = maker.inputs[0]
    return None


SUMS = ("add", "__add__", "add_", "__iadd__")


def norm_after(flow: Flow, node: FlowNode) -> Norm | None:
    """Returns the norm between the linear layer `node` and the residual add; None if there is none."""
    following, _ = flow.ahead(
        node.outputs[0], ("norm", "linear", "core", "experts", "add", "__add__", "add_", "__iadd__")
    )
    return following.norm if following is not None and following.kind == "norm" else None
