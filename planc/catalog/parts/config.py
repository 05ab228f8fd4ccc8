"""Read a Hugging Face `config.json` field by field, and record the fields that nothing reads.

A missing field has the default of its configuration class in `transformers`, because `save_pretrained` may omit
defaults; sizes have no default here. All errors are ValueErrors with a message for the user.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planc.catalog.parts.sizes import Scaling, Size, check_layers

MAX_LENGTH = 10**12
NORM_EPS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon")


class Config:
    """A Hugging Face config that records which of its fields are read. Messages name the model family `family`."""

    def __init__(self, family: str, fields: Mapping[str, Any]) -> None:
        self.family, self._fields = family, fields
        self._used = {"model_type"}
        self._inner: dict[str, Config] = {}

    @property
    def unused(self) -> tuple[str, ...]:
        """Sorted names of the fields that were not read. A field of a nested object is named `object.field`."""
        inner = [f"{name}.{field}" for name, config in self._inner.items() for field in config.unused]
        return tuple(sorted({*self._fields} - self._used | {*inner}))

    def inner(self, name: str) -> Config:
        """Return the nested object `name` as a Config, empty if the field is absent. Raises ValueError if it is no
        object."""
        self._inner[name] = Config(self.family, self.table(name))
        return self._inner[name]

    def value(self, *names: str, default: Any = None) -> Any:
        """Return the first of the fields `names` that is present and not null, or `default`.

        Configuration classes may give one field several names (`attribute_map`). Raises ValueError if fields in `names`
        have different values.
        """
        self._used.update(names)
        given = {name: self._fields[name] for name in names if self._fields.get(name) is not None}
        if len(set(map(repr, given.values()))) > 1:
            both = " and ".join(f"{name} = {value!r}" for name, value in given.items())
            raise ValueError(f"{both} are one field under two names")
        return next(iter(given.values()), default)

    def whole(self, *names: str, default: int | None = None, minimum: int = 1) -> int:
        """Return the integer field called by one of `names`, such as a number of heads, or `default` if absent. Raises
        ValueError if it is no integer of at least `minimum`."""
        value = self.value(*names, default=default)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= MAX_LENGTH:
            raise ValueError(f"{names[0]} = {value!r} is not a whole number of at least {minimum}")
        return value

    def layers(self, *names: str) -> int:
        """Return the number of layers, a field called by one of `names`. Raises ValueError if it is too large."""
        return check_layers(self.whole(*names))

    def number(self, *names: str, default: float) -> float:
        """Return the number (a ratio or base) called by one of `names`, or `default`. Raises ValueError if it is not
        above 0."""
        return _positive(names[0], self.value(*names, default=default))

    def flag(self, *names: str, default: bool) -> bool:
        """Return the boolean under one of `names`, or `default` if absent. Raises ValueError if it is no boolean."""
        value = self.value(*names, default=default)
        if not isinstance(value, bool):
            raise ValueError(f"{names[0]} = {value!r} is neither true nor false")
        return value

    def numbers(self, name: str) -> tuple[int, ...]:
        """Return the list of layer indices in field `name`; () if absent. Raises ValueError if it is no such list."""
        value = self.value(name, default=[])
        if not isinstance(value, list) or any(isinstance(v, bool) or not isinstance(v, int) for v in value):
            raise ValueError(f"{name} = {value!r} is not a list of whole numbers")
        return tuple(value)

    def must_be(self, **fields: Any) -> None:
        """Raise ValueError if one of `fields` is present with another value than given here: the family does not
        support it.

        A tuple lists equivalent values.
        """
        for name, legal in fields.items():
            known = legal if isinstance(legal, tuple) else (legal,)
            value = self.value(name, default=known[0])
            if repr(value) not in map(repr, known):
                raise ValueError(f"{name} = {value!r}; planc's {self.family} family has {known[0]!r}")

    def head_dim(self, embed: int, heads: int, default: int = 0) -> int:
        """Return the elements of a head: the field `head_dim`, else `default`, else (if that is 0) `embed` divided by
        `heads`."""
        value = self.whole("head_dim", default=default or embed // heads)
        if not default and self._fields.get("head_dim") is None and embed % heads:
            raise ValueError(f"there is no head_dim, and {embed} is no multiple of {heads} heads")
        return value

    def rope(self, theta: float) -> tuple[float, Scaling]:
        """Return the base of rotary positions (no unit; `theta` if absent) and the parameters of RoPE scaling ({} for
        none).

        Newer configs have both in `rope_parameters`, older ones in `rope_theta` and `rope_scaling`.
        """
        new, old = self.table("rope_parameters"), self.table("rope_scaling")
        base = _positive("rope_theta", new.get("rope_theta", self.value("rope_theta", default=theta)))
        given = {k: v for k, v in (new or old).items() if k != "rope_theta" and v is not None}
        if not all(name.isidentifier() and _is_plain_value(value) for name, value in given.items()):
            raise ValueError("the scaling of rotary positions is not made of names and numbers")
        older = given.pop("type", "default")
        kind = given.pop("rope_type", older)
        return base, {} if kind == "default" else {"rope_type": kind, **given}

    def window(self, *, default: int = 0) -> int:
        """Return `sliding_window` in tokens: `default` if absent, 0 (full attention) if null."""
        if "sliding_window" in self._fields and self._fields["sliding_window"] is None:
            default = 0
        return self.whole("sliding_window", default=default, minimum=0)

    def windows(self, layers: int) -> tuple[bool, ...] | None:
        """Return for each of `layers` True if `layer_types` says sliding attention, False if full. None without that
        field."""
        kinds = self.value("layer_types")
        if kinds is None:
            return None
        known = {"full_attention": False, "sliding_attention": True}
        if not isinstance(kinds, list) or len(kinds) != layers or any(k not in known for k in map(str, kinds)):
            raise ValueError(f"layer_types is not a list of {layers} times {' or '.join(known)}")
        return tuple(known[kind] for kind in kinds)

    def routed(self, layers: int) -> tuple[bool, ...]:
        """Return for each of `layers` True if it has experts: every `decoder_sparse_step`-th that is not in
        `mlp_only_layers` (Qwen)."""
        step, listed = self.whole("decoder_sparse_step", default=1), self.numbers("mlp_only_layers")
        return tuple(layer not in listed and (layer + 1) % step == 0 for layer in range(layers))

    def unrotated(self, layers: int) -> tuple[bool, ...]:
        """Return for each of `layers` True if it has no rotary positions: those with a 0 in `no_rope_layers`, or
        without that field every `no_rope_layer_interval`-th. Raises ValueError for a list of another length."""
        rotated, every = self.numbers("no_rope_layers"), self.whole("no_rope_layer_interval", default=4)
        if rotated and len(rotated) != layers:
            raise ValueError(f"no_rope_layers is not a list of {layers} numbers")
        return tuple(not r for r in rotated) or tuple((layer + 1) % every == 0 for layer in range(layers))

    def table(self, name: str) -> dict[str, Any]:
        """Return the object in the field `name`; {} if absent. Raises ValueError if it is no object."""
        value = self.value(name, default={})
        if not isinstance(value, dict):
            raise ValueError(f"{name} = {value!r} is not an object")
        return value


def decoder_size(
    config: Config,
    *,
    rope_theta: float,
    kv_heads: int | None = None,
    head_dim: int = 0,
    norm_eps: float = 1e-6,
    tied: bool = False,
) -> Size:
    """Return the sizes that configs of Llama and later families have in common: not those of MLP, experts and window.

    The keywords are defaults for missing fields. `kv_heads` None means the number of query heads, `head_dim` 0 the
    model's width divided by that number. Raises ValueError for an invalid field.
    """
    embed, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    theta, scaling = config.rope(rope_theta)
    return Size(
        layers=config.layers("num_hidden_layers"),
        embed=embed,
        heads=heads,
        kv_heads=config.whole("num_key_value_heads", default=heads if kv_heads is None else kv_heads),
        head_dim=config.head_dim(embed, heads, default=head_dim),
        vocab=config.whole("vocab_size"),
        rope_theta=theta,
        rope_scaling=scaling,
        norm_eps=config.number(*NORM_EPS, default=norm_eps),
        tied=config.flag("tie_word_embeddings", default=tied),
    )


def _is_plain_value(value: Any) -> bool:
    if isinstance(value, str):
        return value.isprintable() and len(value) <= 200
    return isinstance(value, int | float) and 0 <= value < 1e30


def _positive(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
        raise ValueError(f"{name} = {value!r} is not a number above 0")
    return float(value)
