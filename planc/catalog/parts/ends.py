"""The two ends of a model: the embedding, and the head with its loss."""

from __future__ import annotations

from planc.catalog.parts.part import Part
from planc.catalog.parts.steps import Shape, hidden, matmul, norm, weight
from planc.ir.model import Op, Tensor

EMBEDDING = "tok_embeddings"
POSITIONS = "pos_embeddings"
HEAD = "output"


def embedding() -> Part:
    """Token ids to the residual stream."""
    return Part(
        params=(weight(EMBEDDING, (("vocab",), ("embed",))),),
        tensors=(_tokens(), hidden("hidden")),
        ops=(_embed("hidden"),),
    )


def embedding_with_positions() -> Part:
    """The same, and a learned vector for each of the `positions`."""
    op = Op(
        name="embedding.positions",
        kind="add",
        region="residual",
        module=POSITIONS,
        inputs=("hidden.tokens",),
        params=(f"{POSITIONS}.weight",),
        output="hidden",
    )
    return Part(
        params=(weight(EMBEDDING, (("vocab",), ("embed",))), weight(POSITIONS, (("positions",), ("embed",)))),
        tensors=(_tokens(), hidden("hidden.tokens"), hidden("hidden")),
        ops=(_embed("hidden.tokens"), op),
    )


def head(*, tied: bool = False, biased_norm: bool = False) -> Part:
    """The last norm, the projection to the vocabulary and the cross entropy.

    A `tied` head uses the embedding's weight; `biased_norm` makes the norm a LayerNorm.
    """
    return norm("final.norm", "norm", "hidden", hidden("head.in"), biased=biased_norm) + loss("head.in", tied=tied)


def loss(source: str, *, tied: bool = False, biased: bool = False) -> Part:
    """The projection of tensor `source` to the vocabulary, with a bias if `biased`, and the cross entropy.

    A `tied` projection uses the embedding's weight.
    """
    logits = Tensor(name="logits", dims=("batch", "sequence", "vocab"), region="head")
    table = EMBEDDING if tied else ""
    shape: Shape = (("vocab",), ("embed",))
    op = Op(
        name="loss",
        kind="loss",
        region="head",
        module="loss",
        inputs=("logits", "targets"),
        output="loss",
        saves=("logits", "targets"),
    )
    ends = (
        Tensor(name="targets", dims=("batch", "sequence"), region="head", dtype="int"),
        Tensor(name="loss", dims=(), region="head", dtype="fp32"),
    )
    projection = matmul("head", "head", HEAD, shape, source, logits, weight_of=table, biased=biased)
    return projection + Part(tensors=ends, ops=(op,))


def _tokens() -> Tensor:
    return Tensor(name="tokens", dims=("batch", "sequence"), region="embedding", dtype="int")


def _embed(target: str) -> Op:
    return Op(
        name="embedding",
        kind="embedding",
        region="embedding",
        module=EMBEDDING,
        inputs=("tokens",),
        params=(f"{EMBEDDING}.weight",),
        output=target,
        saves=("tokens",),
    )
