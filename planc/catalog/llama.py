"""The dense Llama family: grouped-query attention, rotary positions, RMSNorm, gated MLP.

Parameter names and storage shapes are those of the bundled torch and JAX models; linear weights are
stored [out, in]. Sizes of the published models are from their `config.json` files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planc.ir.model import Model, Op, Param, Tensor

FAMILY = "llama"

HIDDEN = ("batch", "sequence", "embed")


@dataclass(frozen=True)
class Size:
    layers: int
    embed: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    head_dim: int = 0
    """0: embed / heads."""


SIZES: dict[str, Size] = {
    "llama_tiny": Size(layers=4, embed=256, heads=8, kv_heads=4, ffn=688, vocab=256),
    "llama_micro": Size(layers=4, embed=64, heads=8, kv_heads=4, ffn=182, vocab=134),
    "llama2_7b": Size(layers=32, embed=4096, heads=32, kv_heads=32, ffn=11008, vocab=32000),
    "llama2_13b": Size(layers=40, embed=5120, heads=40, kv_heads=40, ffn=13824, vocab=32000),
    "llama2_70b": Size(layers=80, embed=8192, heads=64, kv_heads=8, ffn=28672, vocab=32000),
    "llama3_8b": Size(layers=32, embed=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256, rope_theta=5e5),
    "llama3_70b": Size(layers=80, embed=8192, heads=64, kv_heads=8, ffn=28672, vocab=128256, rope_theta=5e5),
    "llama3_405b": Size(layers=126, embed=16384, heads=128, kv_heads=8, ffn=53248, vocab=128256, rope_theta=5e5),
}
"""`llama_tiny` trains on a laptop in minutes; `llama_micro` is for parity tests: its vocab and ffn
are no multiples of 4 and its heads are grouped."""


def models() -> tuple[str, ...]:
    """The names `model NAME` may use."""
    return tuple(SIZES)


def build(name: str, changes: dict[str, int] | None = None) -> Model:
    """The op graph of a named model; `changes` replaces sizes (`model llama3_8b(layers = 4)`)."""
    return _build(name, SIZES[name], changes or {})


MODEL_TYPES = ("llama",)
"""`model_type` of the configs this family reads."""

MUST_BE: dict[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "sliding_window": None,
    "rope_scaling": None,
}
"""Fields whose other values would make it another model."""

READ = {
    "num_hidden_layers": "layers",
    "hidden_size": "embed",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "intermediate_size": "ffn",
    "vocab_size": "vocab",
}


def read_config(name: str, config: Mapping[str, Any]) -> tuple[Model, tuple[str, ...]]:
    """The model of a Hugging Face config, and the fields that were not used.

    Raises ValueError, in words for the user, when the config is not of this family.
    """
    for field, value in MUST_BE.items():
        if config.get(field, value) != value:
            raise ValueError(f"{field} = {config[field]!r}; planc's {FAMILY} family has {value!r}")
    numbers = {"num_key_value_heads": config.get("num_attention_heads"), **config}
    sizes = {ours: _whole(theirs, numbers.get(theirs)) for theirs, ours in READ.items()}
    rope = config.get("rope_parameters") or {}
    theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    head_dim = config.get("head_dim") or sizes["embed"] // sizes["heads"]
    size = Size(
        **sizes,
        rope_theta=_positive("rope_theta", theta),
        norm_eps=_positive("rms_norm_eps", config.get("rms_norm_eps", 1e-5)),
        head_dim=_whole("head_dim", head_dim),
    )
    used = {*READ, *MUST_BE, "head_dim", "rope_theta", "rope_parameters", "rms_norm_eps", "model_type"}
    return _build(name, size, {}), tuple(sorted(set(config) - used))


def _whole(field: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= 10**12:
        raise ValueError(f"{field} = {value!r} is not a whole number of at least 1")
    return value


def _positive(field: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
        raise ValueError(f"{field} = {value!r} is not a number above 0")
    return float(value)


def _build(name: str, size: Size, changes: dict[str, int]) -> Model:
    sizes = {
        "layers": size.layers,
        "embed": size.embed,
        "heads": size.heads,
        "kv_heads": size.kv_heads,
        "head_dim": size.head_dim or size.embed // size.heads,
        "ffn": size.ffn,
        "vocab": size.vocab,
        **changes,
    }
    return Model(
        name=name,
        family=FAMILY,
        sizes=sizes,
        rope_theta=size.rope_theta,
        norm_eps=size.norm_eps,
        params=_params(),
        tensors=_tensors(),
        ops={"first": _first(), "block": (*_attention(), *_ffn()), "last": _last()},
    )


def _params() -> tuple[Param, ...]:
    heads, kv, embed = ("heads", "head_dim"), ("kv_heads", "head_dim"), ("embed",)
    ffn, vocab = ("ffn",), ("vocab",)
    block: list[tuple[str, tuple[tuple[str, ...], ...]]] = [
        ("attention_norm", (embed,)),
        ("attention.wq", (heads, embed)),
        ("attention.wk", (kv, embed)),
        ("attention.wv", (kv, embed)),
        ("attention.wo", (embed, heads)),
        ("ffn_norm", (embed,)),
        ("feed_forward.w1", (ffn, embed)),
        ("feed_forward.w3", (ffn, embed)),
        ("feed_forward.w2", (embed, ffn)),
    ]
    return (
        Param(name="tok_embeddings.weight", shape_dims=(vocab, embed), section="first"),
        *(_block_param(module, dims) for module, dims in block),
        Param(name="norm.weight", shape_dims=(embed,), section="last", init="ones", decay=False),
        Param(name="output.weight", shape_dims=(vocab, embed), section="last"),
    )


def _block_param(module: str, shape_dims: tuple[tuple[str, ...], ...]) -> Param:
    norm = module.endswith("norm")
    return Param(
        name=f"layers.*.{module}.weight",
        shape_dims=shape_dims,
        section="block",
        init="ones" if norm else "normal",
        decay=not norm,
    )


def _tensors() -> tuple[Tensor, ...]:
    q = ("batch", "sequence", "heads", "head_dim")
    kv = ("batch", "sequence", "kv_heads", "head_dim")
    ffn = ("batch", "sequence", "ffn")
    return (
        Tensor(name="tokens", dims=("batch", "sequence"), region="embedding", dtype="int"),
        Tensor(name="hidden", dims=HIDDEN, region="residual"),
        Tensor(name="attention.in", dims=HIDDEN, region="residual"),
        Tensor(name="attention.q", dims=q, region="attention"),
        Tensor(name="attention.k", dims=kv, region="attention"),
        Tensor(name="attention.v", dims=kv, region="attention"),
        Tensor(name="attention.q_rotated", dims=q, region="attention"),
        Tensor(name="attention.k_rotated", dims=kv, region="attention"),
        Tensor(name="attention.mixed", dims=q, region="attention"),
        Tensor(name="attention.out", dims=HIDDEN, region="residual"),
        Tensor(name="hidden.mid", dims=HIDDEN, region="residual"),
        Tensor(name="ffn.in", dims=HIDDEN, region="residual"),
        Tensor(name="ffn.gate", dims=ffn, region="ffn"),
        Tensor(name="ffn.up", dims=ffn, region="ffn"),
        Tensor(name="ffn.mid", dims=ffn, region="ffn"),
        Tensor(name="ffn.out", dims=HIDDEN, region="residual"),
        Tensor(name="head.in", dims=HIDDEN, region="residual"),
        Tensor(name="logits", dims=("batch", "sequence", "vocab"), region="head"),
        Tensor(name="targets", dims=("batch", "sequence"), region="head", dtype="int"),
        Tensor(name="loss", dims=(), region="head", dtype="fp32"),
    )


def _first() -> tuple[Op, ...]:
    return (
        Op(
            name="embedding",
            kind="embedding",
            region="embedding",
            module="tok_embeddings",
            inputs=("tokens",),
            params=("tok_embeddings.weight",),
            output="hidden",
            saves=("tokens",),
        ),
    )


def _attention() -> tuple[Op, ...]:
    return (
        _norm("attention.norm", "layers.*.attention_norm", "hidden", "attention.in"),
        _matmul("attention.q", "attention", "layers.*.attention.wq", "attention.in", "attention.q"),
        _matmul("attention.k", "attention", "layers.*.attention.wk", "attention.in", "attention.k"),
        _matmul("attention.v", "attention", "layers.*.attention.wv", "attention.in", "attention.v"),
        _rope("attention.rope_q", "attention.q", "attention.q_rotated"),
        _rope("attention.rope_k", "attention.k", "attention.k_rotated"),
        Op(
            name="attention.core",
            kind="attention",
            region="attention",
            module="layers.*.attention",
            inputs=("attention.q_rotated", "attention.k_rotated", "attention.v"),
            output="attention.mixed",
            whole=("head_dim", "sequence"),
            saves=("attention.q_rotated", "attention.k_rotated", "attention.v", "attention.mixed"),
        ),
        _matmul("attention.out", "attention", "layers.*.attention.wo", "attention.mixed", "attention.out"),
        Op(
            name="attention.add",
            kind="add",
            region="residual",
            module="layers.*",
            inputs=("hidden", "attention.out"),
            output="hidden.mid",
        ),
    )


def _ffn() -> tuple[Op, ...]:
    return (
        _norm("ffn.norm", "layers.*.ffn_norm", "hidden.mid", "ffn.in"),
        _matmul("ffn.gate", "ffn", "layers.*.feed_forward.w1", "ffn.in", "ffn.gate"),
        _matmul("ffn.up", "ffn", "layers.*.feed_forward.w3", "ffn.in", "ffn.up"),
        Op(
            name="ffn.swiglu",
            kind="elementwise",
            region="ffn",
            module="layers.*.feed_forward",
            inputs=("ffn.gate", "ffn.up"),
            output="ffn.mid",
            saves=("ffn.gate", "ffn.up"),
        ),
        _matmul("ffn.down", "ffn", "layers.*.feed_forward.w2", "ffn.mid", "ffn.out"),
        Op(
            name="ffn.add",
            kind="add",
            region="residual",
            module="layers.*",
            inputs=("hidden.mid", "ffn.out"),
            output="hidden",
        ),
    )


def _last() -> tuple[Op, ...]:
    return (
        _norm("final.norm", "norm", "hidden", "head.in"),
        _matmul("head", "head", "output", "head.in", "logits"),
        Op(
            name="loss",
            kind="loss",
            region="head",
            module="loss",
            inputs=("logits", "targets"),
            output="loss",
            saves=("logits", "targets"),
        ),
    )


def _norm(name: str, module: str, source: str, target: str) -> Op:
    return Op(
        name=name,
        kind="norm",
        region="residual",
        module=module,
        inputs=(source,),
        params=(f"{module}.weight",),
        output=target,
        whole=("embed",),
        saves=(source,),
    )


def _matmul(name: str, region: str, module: str, source: str, target: str) -> Op:
    return Op(
        name=name,
        kind="matmul",
        region=region,
        module=module,
        inputs=(source,),
        params=(f"{module}.weight",),
        output=target,
        saves=(source,),
    )


def _rope(name: str, source: str, target: str) -> Op:
    return Op(
        name=name,
        kind="rope",
        region="attention",
        module="layers.*.attention",
        inputs=(source,),
        output=target,
    )
