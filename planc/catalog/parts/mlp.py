"""Feed-forward layers: gated (weights w1, w3, w2) and ungated (w1, w2)."""

from __future__ import annotations

from planc.catalog.parts.part import HIDDEN, Part
from planc.catalog.parts.steps import add, elementwise, hidden, matmul, norm
from planc.ir.model import Tensor

MODULE = "layers.*.feed_forward"


def feed_forward() -> Part:
    """Return a gated MLP with norm and residual add. It reads the tensor `hidden.mid` and writes `hidden`."""
    out = ("hidden.mid", "ffn.out")
    return ffn_norm() + gated("ffn", MODULE, "ffn") + add("ffn.add", "layers.*", out, hidden("hidden"))


def plain_feed_forward(*, biased: bool = False, biased_norm: bool = False) -> Part:
    """Return an MLP with GELU, norm and residual add. It reads the tensor `hidden.mid` and writes `hidden`.

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
    """Return an MLP with squared ReLU, norm and residual add. It reads and writes the tensor `hidden`."""
    out = ("hidden", "ffn.out")
    return (
        ffn_norm(source="hidden")
        + squared_relu("ffn", MODULE, "ffn")
        + add("ffn.add", "layers.*", out, hidden("hidden"))
    )


def ffn_norm(*, source: str = "hidden.mid", biased: bool = False) -> Part:
    """Return the norm before an MLP or experts: it reads the tensor `source` and writes `ffn.in`; LayerNorm if
    `biased`."""
    return norm("ffn.norm", "layers.*.ffn_norm", source, hidden("ffn.in"), biased=biased)


def gated(name: str, module: str, width: str) -> Part:
    """Return w2 (SiLU(w1 x) * w3 x) with inner dim `width`: it reads x = `ffn.in` and writes the tensor NAME.out."""
    wide = (*HIDDEN[:2], width)
    gate, up, mid = (Tensor(name=f"{name}.{t}", dims=wide, region="ffn") for t in ("gate", "up", "mid"))
    return (
        matmul(f"{name}.gate", "ffn", f"{module}.w1", ((width,), ("embed",)), "ffn.in", gate)
        + matmul(f"{name}.up", "ffn", f"{module}.w3", ((width,), ("embed",)), "ffn.in", up)
        + elementwise(f"{name}.swiglu", "ffn", module, (gate.name, up.name), mid)
        + matmul(f"{name}.down", "ffn", f"{module}.w2", (("embed",), (width,)), mid.name, hidden(f"{name}.out"))
    )


def squared_relu(name: str, module: str, width: str) -> Part:
    """Return w2 (ReLU(w1 x) squared) with inner dim `width` ("Primer", So 2021): x is `ffn.in`, the result NAME.out."""
    wide = (*HIDDEN[:2], width)
    up, mid = (Tensor(name=f"{name}.{t}", dims=wide, region="ffn") for t in ("up", "mid"))
    return (
        matmul(f"{name}.up", "ffn", f"{module}.w1", ((width,), ("embed",)), "ffn.in", up)
        + elementwise(f"{name}.squared_relu", "ffn", module, (up.name,), mid)
        + matmul(f"{name}.down", "ffn", f"{module}.w2", (("embed",), (width,)), mid.name, hidden(f"{name}.out"))
    )
