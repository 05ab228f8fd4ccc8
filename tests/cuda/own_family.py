"""A model family that exists in these tests alone: its op graph, as a file of the catalog gives it.

Attention without positions of its own has a fourth projection that gates its output; the feed-forward
layer has a third one into it, and its width is called `expert_ffn`, here a dim like any other. The
torch module is in `own_family_module`.
"""

from __future__ import annotations

from planc.catalog.parts.family import ModelFamily
from planc.catalog.parts.part import BLOCK, HIDDEN, Part
from planc.catalog.parts.sizes import Size
from planc.catalog.parts.steps import add, elementwise, hidden, matmul, norm
from planc.ir.model import Op, Tensor

WIDTH = ("heads", "head_dim")
ATTENTION, FFN = "layers.*.attention", "layers.*.feed_forward"


def _attention() -> Part:
    part = norm("attention.norm", "layers.*.attention_norm", "hidden", hidden("attention.in"))
    for letter in "qkvg":
        part += matmul(
            f"attention.{letter}",
            "projection",
            f"{ATTENTION}.w{letter}",
            (WIDTH, ("embed",)),
            "attention.in",
            _heads(f"attention.{letter}"),
        )
    read = ("attention.q", "attention.k", "attention.v")
    core = Op(
        name="attention.core",
        kind="attention",
        region="attention",
        module=f"{ATTENTION}.core",
        inputs=read,
        output="attention.mixed",
        whole=("head_dim",),
        whole_of={"attention.k": ("sequence",), "attention.v": ("sequence",)},
        saves=(*read, "attention.mixed"),
    )
    part += Part(tensors=(_heads("attention.mixed"),), ops=(core,))
    gated = ("attention.mixed", "attention.g")
    part += elementwise("attention.gate", "attention", ATTENTION, gated, _heads("attention.gated"))
    part += matmul(
        "attention.out",
        "projection",
        f"{ATTENTION}.wo",
        (("embed",), WIDTH),
        "attention.gated",
        hidden("attention.out"),
    )
    return part + add("attention.add", "layers.*", ("hidden", "attention.out"), hidden("hidden.mid"))


def _feed_forward() -> Part:
    wide = {n: Tensor(name=f"ffn.{n}", dims=(*HIDDEN[:2], "expert_ffn"), region="ffn") for n in ("a", "b", "c", "mid")}
    part = norm("ffn.norm", "layers.*.ffn_norm", "hidden.mid", hidden("ffn.in"))
    for letter in "abc":
        weight = (("expert_ffn",), ("embed",))
        part += matmul(f"ffn.{letter}", "ffn", f"{FFN}.{letter}", weight, "ffn.in", wide[letter])
    part += elementwise("ffn.mix", "ffn", FFN, ("ffn.a", "ffn.b", "ffn.c"), wide["mid"])
    part += matmul("ffn.out", "ffn", f"{FFN}.out", (("embed",), ("expert_ffn",)), "ffn.mid", hidden("ffn.out"))
    return part + add("ffn.add", "layers.*", ("hidden.mid", "ffn.out"), hidden("hidden"))


def _heads(name: str) -> Tensor:
    return Tensor(name=name, dims=(*HIDDEN[:2], *WIDTH), region="attention")


SIZE = Size(layers=4, embed=64, heads=8, head_dim=12, expert_ffn=182, vocab=134)
FAMILY = ModelFamily(
    name="loom", sizes={"loom_micro": SIZE}, blocks=lambda size: {BLOCK: _attention() + _feed_forward()}
)
