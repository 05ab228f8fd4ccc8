"""Feed-forward layers: gated (weights w1, w3, w2) and ungated (w1, w2)."""

from __future__ import annotations

from collections.abc import Collection

from planc.catalog.parts.part import HIDDEN, Part
from planc.catalog.parts.steps import RMS, NormParams, Shape, add, elementwise, hidden, matmul, norm, to_stream
from planc.ir.model import Tensor

MODULE = "layers.*.feed_forward"


def feed_forward(
    *,
    gated: bool = True,
    biased: Collection[str] = (),
    before: NormParams | None = RMS,
    after: NormParams | None = None,
    source: str = "hidden.mid",
    stream: str = "hidden.mid",
) -> Part:
    """Return an MLP with norm and residual add. It reads the tensor `source`, adds to the tensor `stream` and writes
    `hidden`.

    Without `gated` it is w2 (GELU(w1 x)). `biased` are the linear layers with a bias, of `w1`, `w3` and `w2`; `before`
    and `after` are the norms of its input and output, None for none.
    """
    part = Part()
    if before is not None:
        part, source = ffn_norm(source=source, params=before), "ffn.in"
    part += mlp("ffn", MODULE, "ffn", gated=gated, biased=biased, source=source)
    bias_of = f"{MODULE}.w2" if "w2" in biased else ""
    return part + to_stream("ffn", stream=stream, target="hidden", after=after, bias_of=bias_of)


def squared_relu_feed_forward() -> Part:
    """Return an MLP with squared ReLU, norm and residual add. It reads and writes the tensor `hidden`."""
    out = ("hidden", "ffn.out")
    return (
        ffn_norm(source="hidden")
        + squared_relu("ffn", MODULE, "ffn")
        + add("ffn.add", "layers.*", out, hidden("hidden"))
    )


def ffn_norm(*, source: str = "hidden.mid", params: NormParams = RMS) -> Part:
    """Return the norm before an MLP or experts: it reads the tensor `source` and writes `ffn.in`."""
    return norm("ffn.norm", "layers.*.ffn_norm", source, hidden("ffn.in"), params)


def mlp(
    name: str,
    module: str,
    width: str,
    *,
    gated: bool = True,
    biased: Collection[str] = (),
    source: str = "ffn.in",
) -> Part:
    """Return w2 (SiLU(w1 x) * w3 x) with inner dim `width`, or w2 (GELU(w1 x)) without `gated`: x is the tensor
    `source`, the result NAME.out. `biased` are the layers with a bias; that of w2 is left to the residual add."""
    wide = (*HIDDEN[:2], width)
    part, made = Part(), list[str]()
    for weight, word in (("w1", "gate"), ("w3", "up")) if gated else (("w1", "up"),):
        tensor = Tensor(name=f"{name}.{word}", dims=wide, region="ffn")
        shape: Shape = ((width,), ("embed",))
        part += matmul(tensor.name, "ffn", f"{module}.{weight}", shape, source, tensor, biased=weight in biased)
        made.append(tensor.name)
    mid = Tensor(name=f"{name}.mid", dims=wide, region="ffn")
    back: Shape = (("embed",), (width,))
    part += elementwise(f"{name}.{'swiglu' if gated else 'gelu'}", "ffn", module, tuple(made), mid)
    return part + matmul(f"{name}.down", "ffn", f"{module}.w2", back, mid.name, hidden(f"{name}.out"))


def squared_relu(name: str, module: str, width: str) -> Part:
    """Return w2 (ReLU(w1 x) squared) with inner dim `width` ("Primer", So 2021): x is `ffn.in`, the result NAME.out."""
    wide = (*HIDDEN[:2], width)
    up, mid = (Tensor(name=f"{name}.{t}", dims=wide, region="ffn") for t in ("up", "mid"))
    return (
        matmul(f"{name}.up", "ffn", f"{module}.w1", ((width,), ("embed",)), "ffn.in", up)
        + elementwise(f"{name}.squared_relu", "ffn", module, (up.name,), mid)
        + matmul(f"{name}.down", "ffn", f"{module}.w2", (("embed",), (width,)), mid.name, hidden(f"{name}.out"))
    )
