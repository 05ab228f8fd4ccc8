"""Five models as people write them in JAX, of the sizes of llama_micro and with other names: what `shardings` divides.

Each function of `TREES` gives its parameters, `logits(params, tokens, constrain)` and the rules for its leaves; None
for a tree whose dims are told by the function itself.
"""

from typing import Any, NamedTuple

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

LAYERS, EMBED, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB = 4, 64, 8, 4, 8, 182, 134


class Tree(NamedTuple):
    params: Any
    logits: Any
    rules: Any


def unconstrained(name, x):
    return x


def rms(x, scale):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * scale


def attend(q, k, v):
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def turned(x):
    """Rotary positions, even and odd dims as pairs."""
    angles = jnp.arange(x.shape[1])[:, None] * 100.0 ** -(jnp.arange(0, x.shape[-1], 2) / x.shape[-1])
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    even, odd = x[..., ::2], x[..., 1::2]
    return jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)


# Linen: scanned blocks, kernels with a dim for heads and one for each head's.


class LinenBlock(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        h = nn.RMSNorm(name="before")(x)
        q = nn.DenseGeneral((HEADS, HEAD_DIM), use_bias=False, name="query")(h)
        k = nn.DenseGeneral((KV_HEADS, HEAD_DIM), use_bias=False, name="key")(h)
        v = nn.DenseGeneral((KV_HEADS, HEAD_DIM), use_bias=False, name="value")(h)
        x = x + nn.DenseGeneral(EMBED, axis=(-2, -1), use_bias=False, name="out")(attend(turned(q), turned(k), v))
        h = nn.RMSNorm(name="between")(x)
        up, gate = nn.Dense(FFN, name="up")(h), nn.Dense(FFN, use_bias=False, name="gate")(h)
        return x + nn.Dense(EMBED, use_bias=False, name="down")(nn.silu(gate) * up), None


class Linen(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(VOCAB, EMBED, name="words")(tokens)
        blocks = nn.scan(LinenBlock, variable_axes={"params": 0}, split_rngs={"params": True}, length=LAYERS)
        x, _ = blocks(name="blocks")(x, None)
        return nn.Dense(VOCAB, use_bias=False, name="head")(nn.RMSNorm(name="last")(x))


def linen():
    model = Linen()
    params = model.init(jax.random.key(0), jnp.zeros((1, 8), jnp.int32))
    rules = {
        "*/words/embedding": "vocab, embed",
        "*/query/kernel": "layers, embed, heads, head_dim",
        "*/key/kernel": "layers, embed, kv_heads, head_dim",
        "*/value/kernel": "layers, embed, kv_heads, head_dim",
        "*/out/kernel": "layers, heads, head_dim, embed",
        "*/before/scale": "layers, embed",
        "*/between/scale": "layers, embed",
        "*/last/scale": "embed",
        "*/head/kernel": "embed, vocab",
    }
    return Tree(params, lambda p, tokens, constrain: model.apply(p, tokens), rules)


# NNX: a list of blocks, square kernels; no rule: its function tells.


class NnxBlock(nnx.Module):
    def __init__(self, rngs):
        def linear(a, b, bias=False):
            return nnx.Linear(a, b, use_bias=bias, rngs=rngs)

        self.first, self.second = nnx.RMSNorm(EMBED, rngs=rngs), nnx.RMSNorm(EMBED, rngs=rngs)
        self.q, self.o = linear(EMBED, HEADS * HEAD_DIM, True), linear(HEADS * HEAD_DIM, EMBED)
        self.k, self.v = linear(EMBED, KV_HEADS * HEAD_DIM), linear(EMBED, KV_HEADS * HEAD_DIM)
        self.gate, self.up, self.down = linear(EMBED, FFN), linear(EMBED, FFN), linear(FFN, EMBED)

    def __call__(self, x):
        h = self.first(x)
        q, k, v = (f(h).reshape(*h.shape[:2], -1, HEAD_DIM) for f in (self.q, self.k, self.v))
        x = x + self.o(attend(turned(q), turned(k), v).reshape(*h.shape[:2], -1))
        h = self.second(x)
        return x + self.down(jax.nn.silu(self.gate(h)) * self.up(h))


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.words = nnx.Embed(VOCAB, EMBED, rngs=rngs)
        self.blocks = nnx.List([NnxBlock(rngs) for _ in range(LAYERS)])
        self.norm = nnx.RMSNorm(EMBED, rngs=rngs)
        self.head = nnx.Linear(EMBED, VOCAB, use_bias=False, rngs=rngs)

    def __call__(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def of_nnx():
    graph, params = nnx.split(Nnx(nnx.Rngs(0)))
    return Tree(params, lambda p, tokens, constrain: nnx.merge(graph, p)(tokens), None)


# Equinox: modules of one sequence, weights [out, in], tied words; rules in a file beside the plan.


class EquinoxBlock(eqx.Module):
    norms: list
    qkv: eqx.nn.Linear
    back: eqx.nn.Linear
    wide: eqx.nn.Linear
    narrow: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 4)
        self.norms = [eqx.nn.LayerNorm(EMBED), eqx.nn.LayerNorm(EMBED)]
        self.qkv = eqx.nn.Linear(EMBED, (HEADS + 2 * KV_HEADS) * HEAD_DIM, use_bias=False, key=keys[0])
        self.back = eqx.nn.Linear(HEADS * HEAD_DIM, EMBED, use_bias=False, key=keys[1])
        self.wide, self.narrow = eqx.nn.Linear(EMBED, FFN, key=keys[2]), eqx.nn.Linear(FFN, EMBED, key=keys[3])

    def __call__(self, x):
        h = jax.vmap(self.qkv)(jax.vmap(self.norms[0])(x)).reshape(x.shape[0], -1, HEAD_DIM)
        q, k, v = jnp.split(h, [HEADS, HEADS + KV_HEADS], axis=1)
        mixed = attend(*(part[None] for part in (turned(q[None])[0], turned(k[None])[0], v)))[0]
        x = x + jax.vmap(self.back)(mixed.reshape(x.shape[0], -1))
        return x + jax.vmap(self.narrow)(jax.nn.gelu(jax.vmap(self.wide)(jax.vmap(self.norms[1])(x))))


class Equinox(eqx.Module):
    words: eqx.nn.Embedding
    blocks: list
    norm: eqx.nn.LayerNorm

    def __init__(self, key):
        keys = jax.random.split(key, LAYERS + 1)
        self.words = eqx.nn.Embedding(VOCAB, EMBED, key=keys[-1])
        self.blocks = [EquinoxBlock(key) for key in keys[:-1]]
        self.norm = eqx.nn.LayerNorm(EMBED)

    def __call__(self, tokens):
        x = jax.vmap(self.words)(tokens)
        for block in self.blocks:
            x = block(x)
        return jax.vmap(self.norm)(x) @ self.words.weight.T


EQUINOX_RULES = """
# One matrix makes queries, keys and values: its rows have no name in the plan.
"*/qkv/weight" = _, embed as layers.*.attention.wq
"*/back/weight" = embed, heads * head_dim
"*/norms/*" = embed
"norm/*" = embed
"*/narrow/bias" = embed
"""


def equinox():
    params, rest = eqx.partition(Equinox(jax.random.key(0)), eqx.is_array)
    return Tree(params, lambda p, tokens, constrain: jax.vmap(eqx.combine(p, rest))(tokens), EQUINOX_RULES)


# Plain: nested dicts and a scan, with the plan's constraints on activations.


def plain():
    def make(key, *shape):
        return jax.random.normal(key, shape) * shape[-2] ** -0.5

    keys = iter(jax.random.split(jax.random.key(0), 9))
    blocks = {
        "attn": {
            "q": make(next(keys), LAYERS, EMBED, HEADS * HEAD_DIM),
            "k": make(next(keys), LAYERS, EMBED, KV_HEADS * HEAD_DIM),
            "v": make(next(keys), LAYERS, EMBED, KV_HEADS * HEAD_DIM),
            "o": make(next(keys), LAYERS, HEADS * HEAD_DIM, EMBED),
        },
        "mlp": {
            "in": make(next(keys), LAYERS, EMBED, FFN),
            "gate": make(next(keys), LAYERS, EMBED, FFN),
            "out": make(next(keys), LAYERS, FFN, EMBED),
        },
        "scales": [jnp.ones((LAYERS, EMBED)), jnp.ones((LAYERS, EMBED))],
    }
    params = {"wte": make(next(keys), VOCAB, EMBED), "h": blocks, "ln": jnp.ones(EMBED)}
    params["lm_head"] = make(next(keys), EMBED, VOCAB)

    def logits(params, tokens, constrain):
        def block(x, layer):
            h = constrain("attention.in", rms(x, layer["scales"][0]))
            q, k, v = ((h @ layer["attn"][n]).reshape(*h.shape[:2], -1, HEAD_DIM) for n in "qkv")
            mixed = constrain("attention.mixed", attend(turned(constrain("attention.q", q)), turned(k), v))
            x = constrain("hidden.mid", x + mixed.reshape(*h.shape[:2], -1) @ layer["attn"]["o"])
            h = constrain("ffn.in", rms(x, layer["scales"][1]))
            inner = constrain("ffn.mid", jax.nn.silu(h @ layer["mlp"]["gate"]) * (h @ layer["mlp"]["in"]))
            return constrain("hidden", x + inner @ layer["mlp"]["out"]), None

        x = constrain("hidden", params["wte"][tokens])
        x, _ = jax.lax.scan(jax.checkpoint(block), x, params["h"])
        return constrain("logits", rms(x, params["ln"]) @ params["lm_head"])

    return Tree(params, logits, None)


# As in MaxText: scanned over axis 1, kernels [embed, layers, heads, head_dim], and constraints by name.


class MaxTextBlock(nn.Module):
    constrain: Any

    @nn.compact
    def __call__(self, x, _):
        def dense(name, features, axis=-1):
            return nn.DenseGeneral(features, axis=axis, use_bias=False, name=name)

        h = self.constrain("attention.in", nn.RMSNorm(name="pre_self_attention_layer_norm")(x))
        q = self.constrain("attention.q", dense("query", (HEADS, HEAD_DIM))(h))
        k, v = dense("key", (KV_HEADS, HEAD_DIM))(h), dense("value", (KV_HEADS, HEAD_DIM))(h)
        x = x + dense("out", EMBED, (-2, -1))(attend(turned(q), turned(k), v))
        h = self.constrain("ffn.in", nn.RMSNorm(name="post_self_attention_layer_norm")(x))
        inner = nn.silu(dense("wi_0", FFN)(h)) * dense("wi_1", FFN)(h)
        return self.constrain("hidden", x + dense("wo", EMBED)(inner)), None


class MaxText(nn.Module):
    constrain: Any = unconstrained

    @nn.compact
    def __call__(self, tokens):
        x = self.constrain("hidden", nn.Embed(VOCAB, EMBED, name="token_embedder")(tokens))
        scanned = nn.scan(
            nn.remat(MaxTextBlock, prevent_cse=False),
            variable_axes={"params": 1},
            split_rngs={"params": True},
            length=LAYERS,
        )
        x, _ = scanned(self.constrain, name="layers")(x, None)
        x = nn.RMSNorm(name="decoder_norm")(x)
        return nn.DenseGeneral(VOCAB, use_bias=False, name="logits_dense")(x)


def maxtext():
    params = MaxText().init(jax.random.key(0), jnp.zeros((1, 8), jnp.int32))
    rules = {
        "*/query/kernel": "embed, layers, heads, head_dim",
        "*/key/kernel": "embed, layers, kv_heads, head_dim",
        "*/value/kernel": "embed, layers, kv_heads, head_dim",
        "*/out/kernel": "heads, layers, head_dim, embed",
        "*_layer_norm/scale": "embed, layers",
        "*/decoder_norm/scale": "embed",
    }
    return Tree(params, lambda p, tokens, constrain: MaxText(constrain).apply(p, tokens), rules)


TREES = {"linen": linen, "nnx": of_nnx, "equinox": equinox, "plain": plain, "maxtext": maxtext}
