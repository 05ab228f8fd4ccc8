"""Feed-forward layers: gated (w1, w3, w2) and plain (w1, w2), from `ffn.in` to the residual stream."""

from __future__ import annotations

from planc.catalog.parts.part import HIDDEN, Part
from planc.catalog.parts.steps import add, elementwise, hidden, matmul, norm
from planc.ir.model import Tensor

MODULE = "layers.*.feed_forward"


def feed_forward() -> Part:
    """Return the part from `hidden.mid` to `hidden`: norm, gated MLP and residual add."""
    out = ("hidden.mid", "ffn.out")
    return ffn_norm() + gated("ffn", MODULE, "ffn") + add("ffn.add", "layers.*", out, hidden("hidden"))


def plain_feed_forward(*, biased: bool = False, biased_norm: bool = False) -> Part:
    """Return the part from `hidden.mid` to `hidden`: norm, two linear layers with GELU in between, and residual add.

    `biased` adds biases to the linear layers; `biased_norm` makes the norm a LayerNorm.
    """
    wide = (*HIDDEN[:2], "ffn")
    up = Tensor(name="ffn.up", dims=wide, region="ffn")
    mid = Tensor(name="ffn.mid", dims=wide, region="ffn")
    w2 = f"{MODULE}.w2"
    return (
        ffn_norm(biased=biased_norm)
        + matmul("ffn.up", "ffn", f"{MODULE}.w1", (("ffn",), ("embed",)), "ffn.in", up, biased=biased)
        + elementwise("ffn.gelu", "ffn", MODULE, (up.name,), mid)
        + matmul("ffn.down", "ffn", w2, (("embed",), ("ffn",)), mid.name, hidden("ffn.out"))
        + add("ffn.add", "layers.*", ("hidden.mid", "ffn.out"), hidden("hidden"), bias_of=w2 if biased else "")
    )


def squared_relu_feed_forward() -> Part:
    """Return the part from `hidden` to `hidden`, a layer of its own: norm, two linear layers with a squared ReLU in
    between, and residual add."""
    out = ("hidden", "ffn.out")
    return (
        ffn_norm(source="hidden")
        + squared_relu("ffn", MODULE, "ffn")
        + add("ffn.add", "layers.*", out, hidden("hidden"))
    )


def ffn_norm(*, source: str = "hidden.mid", biased: bool = False) -> Part:
    """Return the norm of tensor `source` before the feed-forward layer or the experts; a LayerNorm if `biased`."""
    return norm("ffn.norm", "layers.*.ffn_norm", source, hidden("ffn.in"), biased=biased)


def gated(name: str, module: str, width: str) -> Part:
    """Return SiLU(w1 x) * w3 x, then w2: `ffn.in` to `NAME.out`, with inner dim `width`."""
    wide = (*HIDDEN[:2], width)
    gate, up, mid = (Tensor(name=f"{name}.{t}", dims=wide, region="ffn") for t in ("gate", "up", "mid"))
    return (
        matmul(f"{name}.gate", "ffn", f"{module}.w1", ((width,), ("embed",)), "ffn.in", gate)
        + matmul(f"{name}.up", "ffn", f"{module}.w3", ((width,), ("embed",)), "ffn.in", up)
        + elementwise(f"{name}.swiglu", "ffn", module, (gate.name, up.name), mid)
        + matmul(f"{name}.down", "ffn", f"{module}.w2", (("embed",), (width,)), mid.name, hidden(f"{name}.out"))
    )


def squared_relu(name: str, module: str, width: str) -> Part:
    """Return ReLU(w1 x) squared, then w2: `ffn.in` to `NAME.out`, with inner dim `width` (So et al. 2021, "Primer")."""
    wide = (*HIDDEN[:2], width)
    up, mid = (Tensor(name=f"{name}.{t}", dims=wide, region="ffn") for t in ("up", "mid"))
    return (
        matmul(f"{name}.up", "ffn", f"{module}.w1", ((width,), ("embed",)), "ffn.in", up)
        + elementwise(f"{name}.squared_relu", "ffn", module, (up.name,), mid)
        + matmul(f"{name}.down", "ffn", f"{module}.w2", (("embed",), (width,)), mid.name, hidden(f"{name}.out"))
    )
