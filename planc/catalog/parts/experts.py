"""A mixture of experts instead of the feed-forward layer: router, dispatch, experts, combine."""

from __future__ import annotations

from planc.catalog.parts.mlp import ffn_norm, mlp, squared_relu
from planc.catalog.parts.part import HIDDEN, Part
from planc.catalog.parts.steps import RMS, NormParams, Shape, add, elementwise, hidden, matmul, to_stream
from planc.ir.model import EXPERTS, ROUTED, SLOTS, Op, Tensor

MODULE = "layers.*.moe"
SCORES = Tensor(name="moe.scores", dims=(*HIDDEN[:2], "experts"), region="residual", dtype="fp32")


def experts(
    *,
    shared: bool = False,
    shared_gate: bool = False,
    biased: bool = False,
    before: NormParams = RMS,
    after: NormParams | None = None,
    stream: str = "hidden.mid",
) -> Part:
    """Return a mixture of experts with norm and residual add. It reads the tensor `stream` and writes `hidden`.

    `shared` adds a shared expert, and `shared_gate` multiplies its output by a score per token (Qwen2-MoE); `biased`
    adds biases to the router and the experts (gpt-oss); `before` and `after` are the norms of its input and output.
    """
    part, out = _mixture(shared=shared, shared_gate=shared_gate, biased=biased)
    part = ffn_norm(source=stream, params=before) + part
    return part + to_stream("ffn", stream=stream, target="hidden", out=out, after=after)


def squared_relu_experts(*, latent: bool = False, source: str = "hidden") -> Part:
    """Return a mixture of experts with a shared expert, norm and residual add. It reads the tensor `source` and writes
    `hidden`. An expert is two linear layers with a squared ReLU in between.

    `latent` projects tokens to a smaller width before they are sent to the routed experts, and their outputs back.
    """
    width = "moe_latent" if latent else "embed"
    part = ffn_norm(source=source) + _router(biased=False)
    part += _into_latent() if latent else Part()
    part += _route("moe.latent" if latent else "ffn.in", width) + _squared_relu_experts(width)
    part += _combine("moe.latent_out" if latent else "moe.out", width)
    part += _out_of_latent() if latent else Part()
    part += squared_relu("shared", f"{MODULE}.shared", "shared_ffn")
    part += add("shared.add", MODULE, ("moe.out", "shared.out"), hidden("ffn.out"))
    return part + add("ffn.add", "layers.*", (source, "ffn.out"), hidden("hidden"))


def _mixture(*, shared: bool, shared_gate: bool, biased: bool) -> tuple[Part, str]:
    """Return router and experts, which read the tensor `ffn.in`, and the name of the output tensor."""
    part = _router(biased) + _route() + _experts(biased) + _combine()
    if not shared:
        return part, "moe.out"
    part += mlp("shared", f"{MODULE}.shared", "shared_ffn")
    beside = "shared.out"
    if shared_gate:
        score, beside = Tensor(name="shared.score", dims=HIDDEN[:2], region="residual"), "shared.weighed"
        part += matmul("shared.gate_score", "residual", f"{MODULE}.shared_gate", ((), ("embed",)), "ffn.in", score)
        part += elementwise("shared.weigh", "residual", MODULE, ("shared.out", score.name), hidden(beside))
    part += add("shared.add", MODULE, ("moe.out", beside), hidden("ffn.out"))
    return part, "ffn.out"


def _router(biased: bool) -> Part:
    """Return the matmul of the router. The experts dim is not sharded, because top-k needs all scores of a token."""
    shape = (("experts",), ("embed",))
    module = f"{MODULE}.router"
    return matmul("moe.router", "residual", module, shape, "ffn.in", SCORES, biased=biased, whole=("experts",))


def _route(source: str = "ffn.in", width: str = "embed") -> Part:
    """Return the op that selects experts and sorts the tokens of `source` by expert. Scores are saved for backward."""
    routed = _slots("moe.routed", width, ROUTED)
    op = Op(
        name="moe.route",
        kind="route",
        region=ROUTED,
        module=MODULE,
        inputs=(source, SCORES.name),
        output=routed.name,
        whole=("experts",),
        saves=(SCORES.name,),
    )
    return Part(tensors=(routed,), ops=(op,))


def _experts(biased: bool) -> Part:
    gate, up, mid = (_slots(f"moe.{t}", "expert_ffn", EXPERTS) for t in ("gate", "up", "mid"))
    returned = _slots("moe.returned", "embed", ROUTED)
    into: Shape = (("experts",), ("expert_ffn",), ("embed",))
    back: Shape = (("experts",), ("embed",), ("expert_ffn",))
    return (
        _linear("gate", "w1", into, "moe.routed", gate, biased)
        + _linear("up", "w3", into, "moe.routed", up, biased)
        + elementwise("moe.swiglu", EXPERTS, f"{MODULE}.experts", (gate.name, up.name), mid)
        + _linear("down", "w2", back, mid.name, returned, biased)
    )


def _squared_relu_experts(width: str) -> Part:
    up, mid = (_slots(f"moe.{t}", "expert_ffn", EXPERTS) for t in ("up", "mid"))
    returned = _slots("moe.returned", width, ROUTED)
    into: Shape = (("experts",), ("expert_ffn",), (width,))
    back: Shape = (("experts",), (width,), ("expert_ffn",))
    return (
        _linear("up", "w1", into, "moe.routed", up, biased=False)
        + elementwise("moe.squared_relu", EXPERTS, f"{MODULE}.experts", (up.name,), mid)
        + _linear("down", "w2", back, mid.name, returned, biased=False)
    )


def _into_latent() -> Part:
    shape: Shape = (("moe_latent",), ("embed",))
    return matmul("moe.into_latent", "residual", f"{MODULE}.into_latent", shape, "ffn.in", _latent("moe.latent"))


def _out_of_latent() -> Part:
    shape: Shape = (("embed",), ("moe_latent",))
    module = f"{MODULE}.out_of_latent"
    return matmul("moe.out_of_latent", "residual", module, shape, "moe.latent_out", hidden("moe.out"))


def _latent(name: str) -> Tensor:
    return Tensor(name=name, dims=(*HIDDEN[:2], "moe_latent"), region="residual")


def _combine(target: str = "moe.out", width: str = "embed") -> Part:
    """Return the op that adds up the outputs of each token's experts.

    The router's weights are applied inside the experts, on the smaller activation before the down projection
    (Megatron-Core's weighted SwiGLU). So the experts' outputs need not be saved for the gradient of the weights.
    """
    out = Tensor(name=target, dims=(*HIDDEN[:2], width), region="residual")
    op = Op(
        name="moe.combine",
        kind="combine",
        region=ROUTED,
        module=MODULE,
        inputs=("moe.returned", SCORES.name),
        output=out.name,
        whole=("experts",),
        saves=(SCORES.name,),
    )
    return Part(tensors=(out,), ops=(op,))


def _slots(name: str, width: str, region: str) -> Tensor:
    return Tensor(name=name, dims=("experts", SLOTS, width), region=region)


def _linear(name: str, letters: str, shape: Shape, source: str, target: Tensor, biased: bool) -> Part:
    module = f"{MODULE}.experts.{letters}"
    return matmul(f"moe.{name}", EXPERTS, module, shape, source, target, biased=biased, param_region=EXPERTS)
