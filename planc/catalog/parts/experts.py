"""A mixture of experts in place of the feed-forward layer: router, dispatch, gated experts, combine."""

from __future__ import annotations

from planc.catalog.parts.mlp import ffn_norm, gated
from planc.catalog.parts.part import HIDDEN, Part
from planc.catalog.parts.steps import Shape, add, elementwise, hidden, matmul
from planc.ir.model import EXPERTS, ROUTED, SLOTS, Op, Tensor

MODULE = "layers.*.moe"
SCORES = Tensor(name="moe.scores", dims=(*HIDDEN[:2], "experts"), region="residual", dtype="fp32")


def experts(*, shared: bool = False, biased: bool = False) -> Part:
    """`hidden.mid` to `hidden`: norm, routed experts, with `shared` one that every token uses, and add.

    `biased` gives the router and the experts biases (gpt-oss).
    """
    part, out = mixture(shared=shared, biased=biased)
    return ffn_norm() + part + add("ffn.add", "layers.*", ("hidden.mid", out), hidden("hidden"))


def mixture(*, shared: bool = False, shared_gate: bool = False, biased: bool = False) -> tuple[Part, str]:
    """`ffn.in` to the tensor that is named beside the part: router, experts, and the `shared` one.

    With a `shared_gate` the shared expert's output is weighed by a score of each token (Qwen2-MoE). `biased` gives the
    router and the experts biases.
    """
    part = _router(biased) + _route() + _experts(biased) + _combine()
    if not shared:
        return part, "moe.out"
    part += gated("shared", f"{MODULE}.shared", "shared_ffn")
    beside = "shared.out"
    if shared_gate:
        score, beside = Tensor(name="shared.score", dims=HIDDEN[:2], region="residual"), "shared.weighed"
        part += matmul("shared.gate_score", "residual", f"{MODULE}.shared_gate", ((), ("embed",)), "ffn.in", score)
        part += elementwise("shared.weigh", "residual", MODULE, ("shared.out", score.name), hidden(beside))
    part += add("shared.add", MODULE, ("moe.out", beside), hidden("ffn.out"))
    return part, "ffn.out"


def _router(biased: bool) -> Part:
    """A score for each expert; picking needs all of a token's scores."""
    shape = (("experts",), ("embed",))
    module = f"{MODULE}.router"
    return matmul("moe.router", "residual", module, shape, "ffn.in", SCORES, biased=biased, whole=("experts",))


def _route() -> Part:
    """Picks experts and lays the tokens out by expert. The backward needs the picks: the scores."""
    routed = _slots("moe.routed", "embed", ROUTED)
    op = Op(
        name="moe.route",
        kind="route",
        region=ROUTED,
        module=MODULE,
        inputs=("ffn.in", SCORES.name),
        output=routed.name,
        whole=("experts",),
        saves=(SCORES.name,),
    )
    return Part(tensors=(routed,), ops=(op,))


def _experts(biased: bool) -> Part:
    """Every expert's gated MLP over its own slots."""
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


def _combine() -> Part:
    """Back to the tokens' places: the sum of a token's experts, weighted by its scores.

    The weights multiply inside the experts, on their narrow activation (Megatron-Core's weighted SwiGLU),
    so that what the experts return need not be kept for the weights' gradient.
    """
    op = Op(
        name="moe.combine",
        kind="combine",
        region=ROUTED,
        module=MODULE,
        inputs=("moe.returned", SCORES.name),
        output="moe.out",
        whole=("experts",),
        saves=(SCORES.name,),
    )
    return Part(tensors=(hidden("moe.out"),), ops=(op,))


def _slots(name: str, width: str, region: str) -> Tensor:
    return Tensor(name=name, dims=("experts", SLOTS, width), region=region)


def _linear(name: str, letters: str, shape: Shape, source: str, target: Tensor, biased: bool) -> Part:
    module = f"{MODULE}.experts.{letters}"
    return matmul(f"moe.{name}", EXPERTS, module, shape, source, target, biased=biased, param_region=EXPERTS)
