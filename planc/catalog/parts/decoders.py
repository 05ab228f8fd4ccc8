"""Decoders that are read from their Hugging Face configs alone: what the block of each `model_type` has.

The facts are those of the classes in `transformers`; a test compares every op graph with the one that is traced from
its class. No module of planc's own implements these models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any, Literal, NamedTuple

from planc.catalog.parts.attention import INPUTS, HeadNorm, attention
from planc.catalog.parts.config import Config, decoder_size
from planc.catalog.parts.ends import embedding, head
from planc.catalog.parts.experts import experts
from planc.catalog.parts.mlp import feed_forward
from planc.catalog.parts.part import BLOCK, Part, assemble
from planc.catalog.parts.sizes import Size
from planc.catalog.parts.steps import LAYER, RMS, NormParams
from planc.diag.fast_dataclass import dataclass
from planc.ir.model import Model, Section

ALL = (*INPUTS, "wo")
MLP = ("w1", "w3", "w2")
Rule = Callable[[Config, int], Sequence[bool]]
"""True for each layer that has a property, from the config and the number of layers."""


class Layer(NamedTuple):
    """A kind of block: its window (tokens; 0: full attention), rotary positions, and experts."""

    window: int
    rotary: bool
    routed: bool


@dataclass(frozen=True, kw_only=True)
class Routed:
    """The experts of a decoder: the fields of the config that have their number, the width of one and the picks of a
    token; the width of the shared expert, if there is one; and the layers that have experts."""

    experts: str = "num_experts"
    width: str = "moe_intermediate_size"
    top_k: str = "num_experts_per_tok"
    shared: Callable[[Config, int], int] = lambda _config, _width: 0
    shared_gate: bool = False
    layers: Rule = lambda _config, layers: [True] * layers


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """How the config of one `model_type` is read, and what its block has."""

    name: str
    norm: NormParams = RMS
    before: bool = True
    """Attention and MLP have a norm before them."""
    after: bool = False
    """They have a norm behind them."""
    parallel: Literal["", "shared", "own"] = ""
    """The MLP runs in parallel to attention: on attention's normed input, or with a norm of its own."""
    fused: bool = False
    """One layer makes queries, keys and values: with as many key heads as query heads there is one dim of heads."""
    biased: tuple[str, ...] = ()
    """Linear layers that always have a bias."""
    biases: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"attention_bias": ALL})
    """The linear layers that have a bias if a field of the config says so; the field's default is that of `flags`."""
    flags: tuple[str, ...] = ()
    """Flags of `biases` that are true by default."""
    qk_norm: HeadNorm | None = None
    qk_norm_if: str = ""
    """The flag of the config that says whether there is a `qk_norm`; "" for always."""
    gated: bool = True
    rope_theta: float = 1e4
    head_dim: int = 0
    kv_heads: int | None = None
    tied: bool = False
    window: int = 0
    """Sliding window (tokens) of a config that has none."""
    slides: Rule = lambda _config, layers: [True] * layers
    """The layers with a sliding window, of a config without `layer_types`."""
    unrotated: Rule = lambda _config, layers: [False] * layers
    """The layers without rotary positions."""
    routed: Routed | None = None
    usual: Mapping[str, int] = field(default_factory=dict)
    """Sizes that published configs of this type leave out, because they are the defaults of its class."""
    must_be: Mapping[str, Any] = field(default_factory=dict)
    """The values of fields that other blocks than this one have differently."""

    def read_config(self, name: str, fields: Mapping[str, Any]) -> tuple[Model, tuple[str, ...]]:
        """Return the op graph of the config `fields`, called `name`, and the names of the fields not used. Raises
        ValueError for an invalid config."""
        rope = fields.get("rope_parameters")
        if isinstance(rope, dict) and "full_attention" in rope:  # the others are of layers with a window
            fields = {**fields, "rope_parameters": rope["full_attention"]}
        config = Config(self.name, {**self.usual, **fields})
        config.must_be(**self.must_be)
        size = decoder_size(
            config,
            rope_theta=self.rope_theta,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            tied=self.tied,
        )
        layers = self._layers(config, size.layers)
        size = self._with_experts(config, size)
        if self.fused and size.kv_heads == size.heads:
            size = replace(size, kv_heads=0)
        if not all(layer.routed for layer in layers):
            size = replace(size, ffn=config.whole("intermediate_size"))
        biased = {*self.biased}
        for flag, modules in self.biases.items():
            biased |= {*modules} if config.flag(flag, default=flag in self.flags) else set()
        if self.after and biased & {"wo", "w2"}:
            raise ValueError(f"a bias before the norms behind attention and MLP; planc's {self.name} family has none")
        normed = self.qk_norm is not None and (not self.qk_norm_if or config.flag(self.qk_norm_if, default=False))
        kinds = _names(layers)
        blocks = {kinds[layer]: self._block(layer, size, biased, normed) for layer in dict.fromkeys(layers)}
        model = assemble(
            name=name,
            family=self.name,
            size=size,
            changes=None,
            first=embedding(),
            blocks=dict(sorted(blocks.items(), key=lambda item: item[0] == BLOCK)),
            last=head(tied=size.tied, biased="output" in biased, before=self.norm),
            kinds=[kinds[layer] for layer in layers],
        )
        return model, config.unused

    def _layers(self, config: Config, layers: int) -> list[Layer]:
        window = config.window(default=self.window)
        slides = config.windows(layers) or self.slides(config, layers)
        unrotated = self.unrotated(config, layers)
        routed = self.routed.layers(config, layers) if self.routed else [False] * layers
        return [Layer(window if s else 0, not u, r) for s, u, r in zip(slides, unrotated, routed, strict=True)]

    def _with_experts(self, config: Config, size: Size) -> Size:
        if self.routed is None:
            return size
        width = config.whole(self.routed.width)
        return replace(
            size,
            experts=config.whole(self.routed.experts),
            expert_ffn=width,
            shared_ffn=self.routed.shared(config, width),
            top_k=config.whole(self.routed.top_k),
        )

    def _block(self, layer: Layer, size: Size, biased: set[str], normed: bool) -> Part:
        qk_norm = self.qk_norm if normed else None
        before, after = self.norm if self.before else None, self.norm if self.after else None
        part = attention(
            window=layer.window,
            rotary=layer.rotary,
            q_norm=qk_norm,
            k_norm=qk_norm,
            biased=biased,
            before=before,
            after=after,
            grouped=size.kv_heads > 0,
        )
        if layer.routed:
            gate = self.routed is not None and self.routed.shared_gate
            return part + experts(shared=size.shared_ffn > 0, shared_gate=gate, before=self.norm, after=after)
        if self.parallel == "shared":
            return part + feed_forward(gated=self.gated, biased=biased, before=None, source="attention.in")
        source = "hidden" if self.parallel else "hidden.mid"
        return part + feed_forward(gated=self.gated, biased=biased, before=before, after=after, source=source)


def _names(layers: Sequence[Layer]) -> dict[Layer, Section]:
    """Return a name for each kind of layer that says how it differs from the others."""
    named: dict[Layer, Section] = {}
    for layer in dict.fromkeys(layers):
        words = ["dense"] if not layer.routed and any(other.routed for other in layers) else []
        words += ["sliding"] if layer.window and not all(other.window for other in layers) else []
        words += ["nope"] if not layer.rotary and any(other.rotary for other in layers) else []
        named[layer] = "_".join(words) or BLOCK
    return named


def _all_but_each(period: int, *fields: str) -> Rule:
    """Return the rule of all layers but every `period`-th, a number that one of `fields` may have."""
    return lambda config, layers: [
        bool((layer + 1) % (config.whole(*fields, default=period) if fields else period)) for layer in range(layers)
    ]


def _none(_config: Config, layers: int) -> list[bool]:
    return [False] * layers


def _full(config: Config, layers: int) -> list[bool]:
    """The layers with full attention, of a model whose other layers have a window."""
    slides = config.windows(layers) or _all_but_each(4, "sliding_window_pattern")(config, layers)
    return [bool(config.window(default=4096)) and not s for s in slides]


def _behind_dense(default: int) -> Rule:
    """Return the rule of the layers with experts behind the first `first_k_dense_replace`."""
    return lambda config, layers: [
        layer >= config.whole("first_k_dense_replace", default=default, minimum=0) for layer in range(layers)
    ]


def _number_of(field: str) -> Callable[[Config, int], int]:
    """Return the width of a shared expert that is `field` times as wide as one expert."""
    return lambda config, width: width * config.whole(field, default=1, minimum=0)


def _width_of(field: str) -> Callable[[Config, int], int]:
    return lambda config, _width: config.whole(field, default=0, minimum=0)


def _sliding_of_qwen(config: Config, layers: int) -> list[bool]:
    ends = config.whole("max_window_layers", default=28, minimum=0)
    use = config.flag("use_sliding_window", default=False)
    return [use and layer % 2 == 0 and layer < ends for layer in range(layers)]


HEAD, ALL_HEADS = HeadNorm(), HeadNorm(over="all")
_gemma = partial(Decoder, head_dim=256, tied=True)
GLM_EXPERTS = Routed(experts="n_routed_experts", shared=_number_of("n_shared_experts"), layers=_behind_dense(1))
GLM_BIASES = {"attention_bias": INPUTS}
BOTH_BIASES = {"attention_bias": ALL, "mlp_bias": MLP}
WIDE_EXPERTS = Routed(experts="num_local_experts", width="intermediate_size")

DECODERS: dict[str, Decoder] = {
    decoder.name: decoder
    for decoder in (
        Decoder(name="arcee", gated=False, biases=BOTH_BIASES),
        Decoder(name="cohere", parallel="shared", tied=True, qk_norm=HeadNorm(over="each"), qk_norm_if="use_qk_norm"),
        Decoder(
            name="cohere2", parallel="shared", tied=True, window=4096, unrotated=_full,
            slides=_all_but_each(4, "sliding_window_pattern"),
        ),
        Decoder(
            name="cwm", head_dim=128, biases={"mlp_bias": MLP}, window=8192, rope_theta=1e6,
            slides=lambda _config, layers: [layer % 4 > 0 for layer in range(layers)],
        ),
        Decoder(
            name="dots1", qk_norm=HEAD, slides=_none,
            routed=replace(GLM_EXPERTS, layers=_behind_dense(0)),
        ),
        Decoder(name="ernie4_5", head_dim=128, tied=True, biases={"use_bias": (*ALL, *MLP)}, rope_theta=5e5),
        Decoder(
            name="exaone4", before=False, after=True, qk_norm=HEAD, biases={}, window=4096, unrotated=_full,
            slides=_all_but_each(4, "sliding_window_pattern"),
        ),
        _gemma(name="gemma"),
        _gemma(name="gemma2", after=True, window=4096, slides=_all_but_each(2)),
        _gemma(
            name="gemma3_text", after=True, window=4096, qk_norm=HEAD,
            slides=_all_but_each(6, "sliding_window_pattern", "_sliding_window_pattern"),
            rope_theta=1e6, must_be={"use_bidirectional_attention": False},
            usual={"num_attention_heads": 8, "vocab_size": 262208}, kv_heads=4,
        ),
        Decoder(name="glm", head_dim=128, biases=GLM_BIASES, flags=("attention_bias",)),
        Decoder(name="glm4", head_dim=128, after=True, biases=GLM_BIASES, flags=("attention_bias",)),
        Decoder(name="glm4_moe", biases=GLM_BIASES, qk_norm=HEAD, qk_norm_if="use_qk_norm", routed=GLM_EXPERTS),
        Decoder(
            name="gpt_neox", norm=LAYER, parallel="own", fused=True, gated=False, biased=("w1", "w2"),
            flags=("attention_bias",), must_be={"use_parallel_residual": True},
        ),
        Decoder(name="granite", biases=BOTH_BIASES),
        Decoder(name="granitemoe", routed=WIDE_EXPERTS),
        Decoder(
            name="granitemoeshared",
            routed=replace(WIDE_EXPERTS, shared=_width_of("shared_intermediate_size")),
        ),
        Decoder(name="helium", head_dim=128, biases={"attention_bias": INPUTS, "mlp_bias": MLP}, rope_theta=1e5),
        Decoder(name="hunyuan_v1_dense", qk_norm=HEAD),
        Decoder(
            name="hunyuan_v1_moe", qk_norm=HEAD,
            routed=Routed(width="intermediate_size", top_k="moe_topk", shared=lambda _config, width: width),
        ),
        Decoder(name="minimax_m2", head_dim=128, qk_norm=ALL_HEADS, biases={}, routed=WIDE_EXPERTS, rope_theta=5e6),
        Decoder(name="ministral", window=4096, biases={}),
        Decoder(name="ministral3", head_dim=128, biases={}),
        Decoder(name="nemotron", norm=LAYER, gated=False, biases=BOTH_BIASES),
        Decoder(name="olmo", norm=()),
        Decoder(name="olmo2", before=False, after=True, qk_norm=ALL_HEADS),
        Decoder(
            name="olmo3", before=False, after=True, qk_norm=ALL_HEADS, window=4096, rope_theta=5e5,
            slides=_all_but_each(4),
        ),
        Decoder(name="olmoe", qk_norm=ALL_HEADS, routed=Routed(width="intermediate_size")),
        Decoder(
            name="phi", norm=LAYER, parallel="shared", gated=False, biased=(*ALL, "w1", "w2", "output"), biases={},
            must_be={"qk_layernorm": False},
        ),
        Decoder(name="phi3", fused=True, biases={}),
        Decoder(
            name="phimoe", norm=LAYER, biases={"attention_bias": ALL, "lm_head_bias": ("output",)},
            slides=_none, routed=WIDE_EXPERTS, rope_theta=1e6,
        ),
        Decoder(
            name="qwen2_moe", biases={"qkv_bias": INPUTS}, flags=("qkv_bias",), slides=_sliding_of_qwen,
            routed=Routed(
                shared=_width_of("shared_expert_intermediate_size"), shared_gate=True, layers=Config.routed
            ),
        ),
        Decoder(
            name="seed_oss", head_dim=128, flags=("attention_bias",),
            biases={"attention_bias": INPUTS, "attention_out_bias": ("wo",), "mlp_bias": MLP},
        ),
        Decoder(
            name="smollm3", tied=True, biases=BOTH_BIASES, unrotated=Config.unrotated, slides=_none, rope_theta=2e6,
            must_be={"use_sliding_window": False},
        ),
        Decoder(
            name="solar_open", head_dim=128, biases=GLM_BIASES, rope_theta=1e6,
            routed=replace(GLM_EXPERTS, layers=_behind_dense(0)),
        ),
        Decoder(
            name="stablelm", norm=LAYER, biases={"use_qkv_bias": INPUTS},
            must_be={"qk_layernorm": False, "use_parallel_residual": False},
        ),
        Decoder(
            name="starcoder2", norm=LAYER, gated=False, tied=True, biases={"use_bias": (*ALL, "w1", "w2")},
            flags=("use_bias",),
        ),
        _gemma(name="vaultgemma", window=4096, slides=_all_but_each(2)),
    )
}  # fmt: skip
"""The decoders by `model_type`. A field without a mention here has the default of `Decoder`."""
