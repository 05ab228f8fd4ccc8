"""The first and the last ops of a model: the embedding, and the head with its loss."""

from __future__ import annotations

from planc.catalog.parts.part import Part
from planc.catalog.parts.steps import RMS, NormParams, Shape, hidden, matmul, norm, weight
from planc.ir.model import Op, Tensor

EMBEDDING = "tok_embeddings"
POSITIONS = "pos_embeddings"
HEAD = "output"


def embedding(*, positions: bool = False) -> Part:
    """Return the token embedding, which writes the tensor `hidden`. With `positions`, learned position embeddings are
    added."""
    if not positions:
        return lookup("embedding", "hidden")
    op = Op(
        name="embedding.positions",
        kind="add",
        region="residual",
        module=POSITIONS,
        inputs=("hidden.tokens",),
        params=(f"{POSITIONS}.weight",),
        output="hidden",
    )
    table = weight(POSITIONS, (("positions",), ("embed",)))
    return lookup("embedding", "hidden.tokens") + Part(params=(table,), tensors=(hidden("hidden"),), ops=(op,))


def lookup(name: str, target: str) -> Part:
    """Return the op `name` that looks up the embeddings of the tokens and writes the tensor `target`."""
    tokens = Tensor(name="tokens", dims=("batch", "sequence"), region="embedding", dtype="int")
    op = Op(
        name=name,
        kind="embedding",
        region="embedding",
        module=EMBEDDING,
        inputs=("tokens",),
        params=(f"{EMBEDDING}.weight",),
        output=target,
        saves=("tokens",),
    )
    table = weight(EMBEDDING, (("vocab",), ("embed",)))
    return Part(params=(table,), tensors=(tokens, hidden(target)), ops=(op,))


def head(*, tied: bool = False, biased: bool = False, before: NormParams | None = RMS) -> Part:
    """Return the final norm `before` (None for none), the projection to the vocabulary and the cross entropy.

    `tied` uses the weight of the embedding for the projection; `biased` adds a bias to it.
    """
    part, source = Part(), "hidden"
    if before is not None:
        part, source = norm("final.norm", "norm", source, hidden("head.in"), before), "head.in"
    return part + loss(source, weight_of=EMBEDDING if tied else "", biased=biased)


def loss(source: str, *, weight_of: str = "", biased: bool = False, prefix: str = "") -> Part:
    """Return the projection of the tensor `source` to the vocabulary, with a bias if `biased`, and the cross entropy.

    `weight_of` is the module whose weight the projection uses, "" for a weight of its own. `prefix` begins the names of
    the new ops and tensors, except `targets`.
    """
    logits = Tensor(name=f"{prefix}logits", dims=("batch", "sequence", "vocab"), region="head")
    shape: Shape = (("vocab",), ("embed",))
    op = Op(
        name=f"{prefix}loss",
        kind="loss",
        region="head",
        module="loss",
        inputs=(logits.name, "targets"),
        output=f"{prefix}loss",
        saves=(logits.name, "targets"),
    )
    ends = (
        Tensor(name="targets", dims=("batch", "sequence"), region="head", dtype="int"),
        Tensor(name=op.output, dims=(), region="head", dtype="fp32"),
    )
    projection = matmul(f"{prefix}head", "head", HEAD, shape, source, logits, weight_of=weight_of, biased=biased)
    return projection + Part(tensors=ends, ops=(op,))
