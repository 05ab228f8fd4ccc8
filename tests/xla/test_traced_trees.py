"""Dims of leaves from a function's own operations; nothing is computed and no devices are needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

from planc.backends.xla.runtime.trees.layout import specs_by_shape
from planc.backends.xla.runtime.trees.shardings import leaf_specs
from planc.backends.xla.runtime.trees.traced import factors_of_leaves
from planc.checks import check_plan
from planc.ir.plan import Plan
from planc.lowering import lower_plan
from tests.plans import cpu_plan, propagated

LAYOUT = ("fsdp 2 > tp 2", "use fsdp over fsdp", "use tp over tp")
PLAN = cpu_plan("t", *LAYOUT, batch="16 x 24 tokens microbatch 2")
EMBED, HEADS, HEAD_DIM, FFN, VOCAB, LAYERS = (
    PLAN.model.sizes[d] for d in ("embed", "heads", "head_dim", "ffn", "vocab", "layers")
)


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def factors(function: Any, plan: Plan = PLAN, **tree: np.ndarray) -> dict[str, Any]:
    """The factors of each leaf of a flat tree, by its name."""
    return dict(zip(sorted(tree), factors_of_leaves(function, tree, plan), strict=True))


def attention(p: Any, tokens: jax.Array) -> jax.Array:
    x = p["words"][tokens]
    q = (x @ p["q"]).reshape(*x.shape[:2], HEADS, HEAD_DIM)
    q = jax.checkpoint(jax.nn.silu)(q + jnp.ones((1, 1, HEADS, 1)))
    return x + q.reshape(x.shape) @ p["o"]


def test_a_square_kernel_is_told_from_its_transpose() -> None:
    found = factors(attention, words=zeros(VOCAB, EMBED), q=zeros(EMBED, EMBED), o=zeros(EMBED, EMBED))
    assert found["q"] == (("embed",), (HEADS, HEAD_DIM))
    assert found["o"] == ((HEADS, HEAD_DIM), ("embed",))
    sharded = propagated(PLAN)
    assert list(specs_by_shape(sharded, "params", (EMBED, EMBED), found["q"])) == [(("fsdp",), ("tp",))]
    assert list(specs_by_shape(sharded, "params", (EMBED, EMBED), found["o"])) == [(("tp",), ("fsdp",))]
    assert len(specs_by_shape(sharded, "params", (EMBED, EMBED))) == 2


def test_the_table_of_words_is_told_by_the_lookup_where_vocab_is_embed() -> None:
    plan = cpu_plan("square", *LAYOUT, batch="16 x 24 tokens microbatch 2", model=f"llama_micro(vocab = {EMBED})")

    def tied(p: Any, tokens: jax.Array) -> jax.Array:
        return (jnp.take(p["words"], tokens, axis=0) * p["scale"]) @ p["words"].T

    found = factors(tied, plan, words=zeros(EMBED, EMBED), scale=zeros(EMBED))
    assert found == {"scale": (("embed",),), "words": (("vocab",), ("embed",))}
    assert list(specs_by_shape(propagated(plan), "params", (EMBED, EMBED), found["words"])) == [(("tp",), ("fsdp",))]


def test_the_axis_of_a_scan_is_that_of_the_layers() -> None:
    def scanned(p: Any, tokens: jax.Array) -> jax.Array:
        x = p["words"][tokens]
        stack = jnp.moveaxis(p["up"], 1, 0), p["down"]
        return jax.lax.scan(lambda x, w: (x + jnp.tanh(x @ w[0]) @ w[1], None), x, stack)[0]

    found = factors(scanned, words=zeros(VOCAB, EMBED), up=zeros(EMBED, LAYERS, FFN), down=zeros(LAYERS, FFN, EMBED))
    assert found["up"] == (("embed",), (), (FFN,))
    assert found["down"] == ((), (FFN,), ("embed",))


def test_a_function_that_is_called_twice_joins_no_axes_of_two_calls() -> None:
    """A jitted function has one jaxpr for all its calls with the same shapes."""
    product = jax.jit(lambda a, b: a @ b)

    def twice(p: Any, tokens: jax.Array) -> jax.Array:
        x = p["words"][tokens]
        q = product(x, p["q"]).reshape(*x.shape[:2], HEADS, HEAD_DIM)
        return x + product(q.reshape(x.shape), p["o"])

    found = factors(twice, words=zeros(VOCAB, EMBED), q=zeros(EMBED, EMBED), o=zeros(EMBED, EMBED))
    assert (found["q"][0], found["o"][1]) == (("embed",), ("embed",))
    assert found["q"][1] == found["o"][0] == (HEADS, HEAD_DIM)


def test_branches_loops_and_biases_are_followed() -> None:
    def branching(p: Any, tokens: jax.Array) -> jax.Array:
        x = p["words"][tokens]
        x = jax.lax.cond(tokens[0, 0] > 3, lambda x: x @ p["up"] + p["bias"], lambda x: x @ p["up"], x)
        x = jax.lax.fori_loop(0, 3, lambda _, x: x * p["scale"], x)
        return jnp.einsum("bsf,ef->bse", x, p["down"])

    found = factors(
        branching,
        words=zeros(VOCAB, EMBED),
        up=zeros(EMBED, FFN),
        bias=zeros(FFN),
        scale=zeros(FFN),
        down=zeros(EMBED, FFN),
    )
    assert found["bias"] == found["scale"] == ((FFN,),)
    assert found["down"][1] == (FFN,)


def test_a_bias_of_heads_lies_as_heads_do_though_it_has_the_size_of_embed() -> None:
    def biased(p: Any, tokens: jax.Array) -> jax.Array:
        x = p["words"][tokens]
        return (x @ p["q"] + p["b"]).reshape(*x.shape[:2], HEADS, HEAD_DIM)

    found = factors(biased, words=zeros(VOCAB, EMBED), q=zeros(EMBED, EMBED), b=zeros(EMBED))
    assert found["b"] == ((HEADS, HEAD_DIM),)
    assert list(specs_by_shape(propagated(PLAN), "params", (EMBED,), found["b"])) == [(("tp", "fsdp"),)]


@pytest.mark.parametrize("halves", ["concatenated", "stacked"])
def test_rotary_positions_leave_the_axis_of_a_head(halves: str) -> None:
    """Heads and a head's dim have one size here; the scores are a sum over the second."""

    def turned(x: jax.Array) -> jax.Array:
        if halves == "stacked":
            return jnp.stack([x[..., ::2] - x[..., 1::2], x[..., 1::2]], axis=-1).reshape(x.shape)
        first, second = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([first - second, second + first], axis=-1)

    def scores(p: Any, tokens: jax.Array) -> jax.Array:
        x = p["words"][tokens]
        q, k = (jnp.einsum("bse,ehd->bshd", x, p[name]) for name in "qk")
        return jnp.einsum("bshd,bthd->bhst", turned(q), turned(k))

    kernel = zeros(EMBED, HEADS, HEAD_DIM)
    assert HEADS == HEAD_DIM
    found = factors(scores, words=zeros(VOCAB, EMBED), q=kernel, k=kernel)
    assert found["q"] == found["k"] == (("embed",), (HEADS,), ("head_dim",))


@pytest.mark.parametrize("kind", ["linen", "maxtext", "equinox"])
def test_the_function_tells_what_the_rules_say(kind: str, tmp_path: Path) -> None:
    """Heads and a head's dim have one size in these models: the scores of attention tell them apart."""
    pytest.importorskip("flax")
    from tests.xla.user_trees import TREES, unconstrained

    made: list[Any] = []

    def build() -> Any:
        made.append(TREES[kind]())
        return made[0].params

    params, tree = jax.eval_shape(build), made[0]
    rules = tree.rules
    if isinstance(rules, str):
        rules = tmp_path / "mine.rules"
        rules.write_text(tree.rules)
    program = lower_plan(check_plan(PLAN), "xla")
    by_rules = leaf_specs(program, params, rules, None, "params")
    told = {"*/qkv/weight": "_, embed"} if kind == "equinox" else {}
    by_function = leaf_specs(program, params, told, lambda p, t: tree.logits(p, t, unconstrained), "params")
    assert by_function == by_rules
