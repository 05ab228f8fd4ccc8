"""Multi-token prediction (MTP): modules after the last layer, each of which predicts one token further ahead.

DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", section 2.2: a module normalizes the hidden state and the embedding of
the next token, projects the two together to the model's width, and runs one more layer. It shares embedding and head.
"""

from __future__ import annotations

from dataclasses import replace

from planc.catalog.parts.ends import EMBEDDING, lookup, loss
from planc.catalog.parts.part import HIDDEN, Part
from planc.catalog.parts.steps import Shape, elementwise, hidden, matmul, norm
from planc.ir.model import Tensor

MODULE = "layers.*.mtp"


def mtp(layer: Part, *, tied: bool = False) -> Part:
    """Return one MTP module with the ops of `layer`. It reads and writes the tensor `hidden`. `tied`: the head uses the
    embedding's weight."""
    final = norm("mtp.final_norm", f"{MODULE}.norm", "hidden", hidden("mtp.head_in"))
    shared = loss("mtp.head_in", weight_of=EMBEDDING if tied else "", prefix="mtp.")
    return _joined() + _reading(layer, "mtp.hidden") + final + shared


def _joined() -> Part:
    pair = Tensor(name="mtp.pair", dims=(*HIDDEN[:2], "mtp_pair"), region="residual")
    joined = ("mtp.hidden_in", "mtp.embedded_in")
    shape: Shape = (("embed",), ("mtp_pair",))
    concat = elementwise("mtp.concat", "residual", MODULE, joined, pair)
    return (
        lookup("mtp.embedding", "mtp.embedded")
        + norm("mtp.hidden_norm", f"{MODULE}.hidden_norm", "hidden", hidden(joined[0]))
        + norm("mtp.embedded_norm", f"{MODULE}.embedded_norm", "mtp.embedded", hidden(joined[1]))
        + replace(concat, ops=tuple(replace(op, saves=()) for op in concat.ops))
        + matmul("mtp.project", "projection", f"{MODULE}.project", shape, pair.name, hidden("mtp.hidden"))
    )


def _reading(layer: Part, source: str) -> Part:
    """Return `layer` with the tensor `source` as its input instead of `hidden`."""

    def renamed(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(source if name == "hidden" else name for name in names)

    ops = tuple(replace(op, inputs=renamed(op.inputs), saves=renamed(op.saves)) for op in layer.ops)
    return replace(layer, ops=ops)
