"""Multi-token prediction: modules behind the layers that each predict one token further ahead.

DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", section 2.2: a module norms the hidden state and the embedding of the
next token, projects both to one, runs a layer of its own, and has the model's embedding and head.
"""

from __future__ import annotations

from dataclasses import replace

from planc.catalog.parts.ends import EMBEDDING, HEAD
from planc.catalog.parts.part import HIDDEN, Part
from planc.catalog.parts.steps import Shape, elementwise, hidden, matmul, norm, weight
from planc.ir.model import Op, Tensor

MODULE = "layers.*.mtp"


def mtp(layer: Part, *, tied: bool = False) -> Part:
    """`hidden` to `hidden`: a module around `layer`, a block's part of this model. A `tied` head is the embedding's."""
    return _joined() + _reading(layer, "mtp.hidden") + _loss(EMBEDDING if tied else HEAD)


def _joined() -> Part:
    """The hidden state beside the embedding of the next token, projected to one."""
    lookup = Op(
        name="mtp.embedding",
        kind="embedding",
        region="embedding",
        module=EMBEDDING,
        inputs=("tokens",),
        params=(f"{EMBEDDING}.weight",),
        output="mtp.embedded",
        saves=("tokens",),
    )
    table = weight(EMBEDDING, (("vocab",), ("embed",)))
    tokens = Tensor(name="tokens", dims=HIDDEN[:2], region="embedding", dtype="int")
    pair = Tensor(name="mtp.pair", dims=(*HIDDEN[:2], "mtp_pair"), region="residual")
    joined = ("mtp.hidden_in", "mtp.embedded_in")
    shape: Shape = (("embed",), ("mtp_pair",))
    concat = elementwise("mtp.concat", "residual", MODULE, joined, pair)
    return (
        Part(params=(table,), tensors=(tokens, hidden("mtp.embedded")), ops=(lookup,))
        + norm("mtp.hidden_norm", f"{MODULE}.hidden_norm", "hidden", hidden(joined[0]))
        + norm("mtp.embedded_norm", f"{MODULE}.embedded_norm", "mtp.embedded", hidden(joined[1]))
        + replace(concat, ops=tuple(replace(op, saves=()) for op in concat.ops))
        + matmul("mtp.project", "projection", f"{MODULE}.project", shape, pair.name, hidden("mtp.hidden"))
    )


def _reading(layer: Part, source: str) -> Part:
    """`layer` with `source` in place of `hidden` as what it takes; it still gives `hidden`."""

    def renamed(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(source if name == "hidden" else name for name in names)

    ops = tuple(replace(op, inputs=renamed(op.inputs), saves=renamed(op.saves)) for op in layer.ops)
    return replace(layer, ops=ops)


def _loss(head: str) -> Part:
    """The module's norm, the head that it shares, and its cross entropy."""
    logits = Tensor(name="mtp.logits", dims=(*HIDDEN[:2], "vocab"), region="head")
    shape: Shape = (("vocab",), ("embed",))
    op = Op(
        name="mtp.loss",
        kind="loss",
        region="head",
        module="loss",
        inputs=(logits.name, "targets"),
        output="mtp.loss",
        saves=(logits.name, "targets"),
    )
    ends = (
        Tensor(name="targets", dims=HIDDEN[:2], region="head", dtype="int"),
        Tensor(name="mtp.loss", dims=(), region="head", dtype="fp32"),
    )
    return (
        norm("mtp.final_norm", f"{MODULE}.norm", "hidden", hidden("mtp.head_in"))
        + matmul("mtp.head", "head", head, shape, "mtp.head_in", logits)
        + Part(tensors=ends, ops=(op,))
    )
