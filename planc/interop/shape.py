"""Converts the sizes of a model to the words of a `model` sentence and back, by the catalog's models."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

from planc.catalog import build_model, model_names
from planc.diag.fast_dataclass import dataclass
from planc.interop.setup import DecoderShape
from planc.ir.model import Model


@dataclass(frozen=True)
class Family:
    """Models with the same architecture. `name` is such a model in the catalog; a `model` sentence may change its
    `sizes`. `latent` means latent attention (MLA), `routed` means experts."""

    name: str
    sizes: tuple[str, ...]
    rms_norm: bool = True
    rotary: bool = True
    gated: bool = True
    biased: bool = False
    query_norm: bool = False
    query_bias: bool = False
    tied: bool = False
    latent: bool = False
    routed: bool = False

    def has(self, shape: DecoderShape) -> bool:
        """True if the family has the norms, positions, biases, head, attention and experts of `shape`."""
        own = (self.rms_norm, self.rotary, self.gated, self.biased, self.query_norm, self.query_bias, self.tied)
        asked = (
            shape.rms_norm,
            shape.rotary,
            shape.gated,
            shape.biased,
            shape.query_norm,
            shape.query_bias,
            shape.tied,
        )
        return own == asked and (self.latent, self.routed) == (bool(shape.kv_lora), bool(shape.experts))


_GROUPED = ("layers", "embed", "heads", "kv_heads", "head_dim")
_LATENT = ("layers", "embed", "heads", "nope_dim", "rope_dim", "q_lora", "kv_lora", "ffn", "experts", "expert_ffn")
FAMILIES = (
    Family("llama3_8b", (*_GROUPED, "ffn", "vocab")),
    Family("llama3_2_1b", (*_GROUPED, "ffn", "vocab"), tied=True),
    Family("qwen2_5_7b", (*_GROUPED, "ffn", "vocab"), query_bias=True),
    Family("qwen2_5_0_5b", (*_GROUPED, "ffn", "vocab"), query_bias=True, tied=True),
    Family("qwen3_8b", (*_GROUPED, "ffn", "vocab"), query_norm=True),
    Family("qwen3_0_6b", (*_GROUPED, "ffn", "vocab"), query_norm=True, tied=True),
    Family(
        "gpt3_175b",
        ("layers", "embed", "heads", "head_dim", "ffn", "vocab", "positions"),
        rms_norm=False,
        rotary=False,
        gated=False,
        biased=True,
        tied=True,
    ),
    Family("mixtral_8x7b", (*_GROUPED, "experts", "expert_ffn", "vocab"), routed=True),
    Family("qwen3_30b_a3b", (*_GROUPED, "experts", "expert_ffn", "vocab"), query_norm=True, routed=True),
    Family("deepseek_v3", (*_LATENT, "shared_ffn", "vocab", "mtp_layers"), latent=True, routed=True),
)
"""Architectures of the catalog whose sizes a `model` sentence may change."""


def model_words(shape: DecoderShape) -> str:
    """Returns the words after `model` in a plan with the sizes `shape`: the name of a published model with these sizes,
    or else the name of a similar model with the sizes that differ.

    Raises ValueError, with a message for the user, if no model of the catalog has the architecture.

    >>> model_words(DecoderShape(layers=32, embed=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256))
    'llama3_8b'
    >>> model_words(DecoderShape(layers=4, embed=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256))
    'llama3_8b(layers = 4)'
    """
    family = next((f for f in FAMILIES if f.has(shape) and not shape.window), None)
    if family is None:
        raise ValueError(f"no model of the catalog has {_architecture(shape)} together")
    wanted = _sizes(shape)
    for name in _relatives(family):
        if not _unlike(shape, wanted, build_model(name)):
            return name
    own = build_model(family.name)
    changes = {name: wanted[name] for name in family.sizes if name in wanted and own.sizes.get(name) != wanted[name]}
    try:
        model = build_model(family.name, changes)
    except ValueError as error:
        raise ValueError(f"{family.name}: {error}") from None
    if unlike := _unlike(shape, wanted, model):
        raise ValueError(f"{family.name} {unlike}")
    return f"{family.name}({', '.join(f'{name} = {size}' for name, size in changes.items())})" if changes else own.name


_TUNED = re.compile(r"_(?:instruct|base|chat|hf|pt|it|thinking|\d{4})$")


def catalog_name(published: str) -> str:
    """Returns the catalog's name of the model that is published as `published`; "" if the catalog has none.

    >>> catalog_name("Qwen/Qwen2.5-7B-Instruct"), catalog_name("meta-llama/Meta-Llama-3.1-8B"), catalog_name("bert")
    ('qwen2_5_7b', 'llama3_1_8b', '')
    """
    name = re.sub(r"[-.]", "_", published.rstrip("/").rpartition("/")[2].lower()).removeprefix("meta_")
    while (short := _TUNED.sub("", name)) != name:
        name = short
    return next((n for n in (name, re.sub(r"^(llama|qwen)_(?=\d)", r"\1", name)) if n in model_names()), "")


def nearest_words(shape: DecoderShape) -> tuple[str, str]:
    """Returns the words after `model` of the catalog's model that differs from `shape` in the fewest features, among
    those with its parameters to 1 % if there are such, and the differences. A feed-forward with another gate gets a
    width with the same parameters.

    Raises ValueError as `model_words` does, if no model of the catalog is near.

    >>> nearest_words(DecoderShape(layers=2, embed=512, heads=8, ffn=2048, vocab=1024, gated=False, biased=True))
    ('llama3_8b(layers = 2, embed = 512, heads = 8, head_dim = 64, ffn = 1365, vocab = 1024)', \
'a feed-forward without gate and biases: 0.14 % fewer parameters')
    """
    found: list[tuple[bool, int, float, str, str]] = []
    for family in FAMILIES:
        if (family.latent, family.routed) != (bool(shape.kv_lora), bool(shape.experts)):
            continue
        features = ("rms_norm", "rotary", "gated", "biased", "query_norm", "query_bias", "tied")
        own = replace(shape, window=0, **{name: getattr(family, name) for name in features})
        own = replace(own, positions=0 if own.rotary else own.positions or 1)
        if own.gated != shape.gated:
            wide = 1.5 if shape.gated else 2 / 3
            own = replace(own, ffn=round(own.ffn * wide), expert_ffn=round(own.expert_ffn * wide))
        try:
            words = model_words(own)
        except ValueError:
            continue
        unlike = [a for a, b in zip(_features(shape), _features(own), strict=False) if a != b]
        share = _parameters(own) / _parameters(shape) - 1
        much = f"{abs(share):.2%}".replace("%", f" % {'fewer' if share < 0 else 'more'} parameters")
        unlike += ["sliding windows"] if shape.window else []
        found.append((abs(share) > 0.01, len(unlike), abs(share), words, f"{' and '.join(unlike)}: {much}"))
    if not found:
        raise ValueError(f"no model of the catalog has {_architecture(shape)} together")
    return min(found)[3:]


def _parameters(shape: DecoderShape) -> int:
    """Returns the number of parameters of a decoder without latent attention."""
    heads, kv, dim = shape.heads, shape.kv_heads or shape.heads, shape.head_dim or shape.embed // shape.heads
    norm, ups = shape.embed * (1 if shape.rms_norm else 2), 2 if shape.gated else 1

    def feed_forward(width: int) -> int:
        return shape.embed * width * (ups + 1) + shape.biased * (width * ups + shape.embed) if width else 0

    biases = (shape.biased or shape.query_bias) * dim * (heads + 2 * kv) + shape.biased * shape.embed
    attention = shape.embed * dim * 2 * (heads + kv) + biases
    dense = shape.dense_layers if shape.experts else shape.layers
    routed = shape.experts * (feed_forward(shape.expert_ffn) + shape.embed) + feed_forward(shape.shared_ffn)
    blocks = shape.layers * (attention + 2 * norm + 2 * dim * shape.query_norm) + dense * feed_forward(shape.ffn)
    ends = shape.vocab * (1 if shape.tied else 2) + shape.positions
    return blocks + (shape.layers - dense) * routed + norm + ends * shape.embed


_SIZES = (*_GROUPED, *_LATENT, "shared_ffn", "vocab", "positions", "mtp_layers")


def _sizes(shape: DecoderShape) -> dict[str, int]:
    """Returns the sizes of `shape` that are not 0, with the default number of kv heads and head dim filled in."""
    filled = {"kv_heads": shape.kv_heads or shape.heads, "head_dim": shape.head_dim or shape.embed // shape.heads}
    found = {name: filled.get(name) or getattr(shape, name) for name in _SIZES}
    return {name: size for name, size in found.items() if size}


def _unlike(shape: DecoderShape, wanted: dict[str, int], model: Model) -> str:
    """Describes the first difference between `model` and the shape, whose sizes are `wanted`; "" if there is none."""
    implied = {"kv_heads": model.sizes["heads"], **model.sizes}
    for name in _SIZES:
        if wanted.get(name, 0) != implied.get(name, 0):
            return f"has {name} = {implied.get(name, 0)}, not {wanted.get(name, 0)}"
    if shape.top_k != model.top_k:
        return f"sends a token to {model.top_k} experts, not to {shape.top_k}"
    if shape.tied != model.tied:
        return "has its head and embedding otherwise"
    if shape.dense_layers != _dense_layers(model):
        return f"has {_dense_layers(model)} layers without experts, not {shape.dense_layers}"
    return ""


@cache
def _relatives(family: Family) -> tuple[str, ...]:
    """Returns the names of the published models of the family in the catalog, shortest name first."""
    file = model_names()[family.name]
    names = [n for n, f in model_names().items() if f == file and not n.endswith(("_micro", "_tiny"))]
    return tuple(sorted(names, key=lambda n: (len(n), n)))


def shape_of(model: Model) -> DecoderShape | None:
    """Returns the sizes and features of `model`; None if its architecture is not in FAMILIES."""
    family = next((f for f in FAMILIES if build_model(f.name).family == model.family and f.tied == model.tied), None)
    if family is None:
        return None
    sizes = {name: model.sizes.get(name, 0) for name in family.sizes}
    return DecoderShape(
        **{"ffn": 0, **sizes},
        rms_norm=family.rms_norm,
        rotary=family.rotary,
        gated=family.gated,
        biased=family.biased,
        query_norm=family.query_norm,
        query_bias=family.query_bias,
        tied=model.tied,
        top_k=model.top_k,
        dense_layers=_dense_layers(model),
    )


def _dense_layers(model: Model) -> int:
    """Returns the number of leading layers without experts; 0 for a model without experts."""
    if "experts" not in model.sizes:
        return 0
    routed = [any(op.region == "experts" for op in model.ops[kind]) for kind in model.kinds]
    return routed.index(True) if True in routed else 0


def _features(shape: DecoderShape) -> list[str]:
    words = [
        "RMSNorm" if shape.rms_norm else "LayerNorm",
        "rotary positions" if shape.rotary else "learned positions",
        "a gated feed-forward" if shape.gated else "a feed-forward without gate",
        "biases" if shape.biased else "no biases",
        "a tied head" if shape.tied else "a head of its own",
    ]
    words.append("norms of queries and keys" if shape.query_norm else "no norms of queries and keys")
    return [
        *words,
        "biases of queries, keys and values" if shape.query_bias else "no biases of queries, keys and values",
    ]


def _architecture(shape: DecoderShape) -> str:
    words = [word for word in _features(shape) if not word.endswith((" keys", " values")) or word[:2] != "no"]
    words += ["experts"] if shape.experts else []
    words += ["latent attention"] if shape.kv_lora else []
    words += ["sliding windows"] if shape.window else []
    return f"{', '.join(words[:-1])} and {words[-1]}"
