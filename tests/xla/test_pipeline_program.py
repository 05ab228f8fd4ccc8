"""The module of the pipeline, with its facts set: each variant beside its stages run one after the other.

The ranks are a dim of `jax.vmap` with the axis's name: no device but one is needed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from planc.pipeline.lockstep import Lockstep
from tests.programs import variant

RANKS, MICROBATCHES, SEQUENCES, TOKENS, WIDTH = 2, 5, 2, 4, 3
EXPERTS = 2


def module(
    chunks: int = 1,
    rounds: int = 1,
    forwards_first: bool = False,
    lengths: Any = None,
    **facts: Any,
) -> Any:
    """The module for these stages, with the tables of its ticks."""
    ticks = Lockstep(RANKS, chunks, MICROBATCHES, rounds, forwards_first)
    tables = {
        "MESH": {"pp": RANKS, "dp": 1},
        "STACK": ("pp",) if chunks == 1 else (None, "pp"),
        "STAGE_LAYERS": lengths,
        "MICROBATCH": SEQUENCES,
        "MICROBATCHES": MICROBATCHES,
        "CHUNKS": chunks,
        "ROUND": rounds,
        "FORWARDS_PER_RANK": ticks.numbers,
        "FIRST_LOSS": ticks.first_loss,
        "FIRST_BACKWARD": ticks.first_backward,
        "FORWARDS": ticks.forward_ticks,
        "ACTIVATION_SLOTS": ticks.places,
        "with_sharding_constraint": lambda x, spec: x,
    }
    facts |= {"chunks": chunks, "forwards_first": forwards_first, "delay": ticks.delay, "uneven": lengths is not None}
    return variant("planc.backends.xla.program", "pipeline", tables, **facts)


VARIANTS: dict[str, dict[str, Any]] = {
    "1f1b": {},
    "gpipe_groups_in_bf16": {"widens": True, "recomputes_groups": True, "forwards_first": True},
    "interleaved_1f1b_uneven": {"chunks": 2, "rounds": 3, "lengths": ((2, 1), (1, 2))},
    "circular_experts": {
        "chunks": 2,
        "rounds": 5,
        "forwards_first": True,
        "experts": EXPERTS,
        "gathers_each_pass": True,
        "widens": True,
    },
}
"""Each fact on either side."""
SELDOM: dict[str, dict[str, Any]] = {
    "gpipe": {"forwards_first": True},
    "1f1b_uneven_experts": {"lengths": (2, 1), "experts": EXPERTS},
    "gathered_each_pass": {"gathers_each_pass": True},
    "experts": {"experts": EXPERTS},
    "groups": {"recomputes_groups": True},
    "interleaved_1f1b": {"chunks": 2, "rounds": 2},
    "interleaved_1f1b_experts": {"chunks": 2, "rounds": 2, "experts": EXPERTS},
    "interleaved_1f1b_groups": {"chunks": 2, "rounds": 2, "recomputes_groups": True},
    "circular": {"chunks": 2, "rounds": 5, "forwards_first": True},
    "circular_groups_in_bf16": {
        "chunks": 2,
        "rounds": 5,
        "forwards_first": True,
        "recomputes_groups": True,
        "widens": True,
    },
    "uneven_interleaved": {"chunks": 2, "rounds": 2, "lengths": ((2, 1), (1, 2))},
}


@pytest.fixture(autouse=True)
def any_permutation(monkeypatch: pytest.MonkeyPatch) -> None:
    """`jax.vmap` permutes where every rank sends; a rank that receives from none has zeros, as on devices."""
    permute = jax.lax.ppermute

    def ppermute(x: jax.Array, axis: str, pairs: list[tuple[int, int]]) -> jax.Array:
        sources, to = ({*range(RANKS)} - {pair[side] for pair in pairs} for side in (0, 1))
        received = permute(x, axis, [*pairs, *zip(sorted(sources), sorted(to), strict=True)])
        return jnp.where(jnp.isin(jax.lax.axis_index(axis), jnp.array([*to], int)), 0, received)

    monkeypatch.setattr(jax.lax, "ppermute", ppermute)


def block(x: Any, layer: jax.Array) -> Any:
    """A layer; with experts, x comes with counts to add to, and a row picks the expert of its sign."""
    hidden, counts = x if isinstance(x, tuple) else (x, None)
    y = hidden + jnp.tanh(hidden @ layer.astype(hidden.dtype))
    if counts is None:
        return y
    picked = jnp.stack([(hidden[..., 0] > 0).sum(), (hidden[..., 0] <= 0).sum()]).astype(counts.dtype)
    return y, counts + picked


def after(ends: Any, y: jax.Array, targets: jax.Array) -> jax.Array:
    return jnp.square(y @ ends["head"] - targets).sum()


@pytest.mark.parametrize("name", [*VARIANTS, *(pytest.param(name, marks=pytest.mark.slow) for name in SELDOM)])
def test_a_pipeline_computes_what_its_stages_do(name: str) -> None:
    given = (VARIANTS | SELDOM)[name]
    program = module(**given)
    chunks, lengths = given.get("chunks", 1), np.array(given.get("lengths", 2))
    lengths = np.broadcast_to(lengths, (chunks, RANKS))
    dtype = jnp.bfloat16 if given.get("widens") else jnp.float32
    keys = jax.random.split(jax.random.key(0), 4)
    stack = jax.random.normal(keys[0], (RANKS, chunks, 2, WIDTH, WIDTH)).astype(dtype)
    ends = {"head": jax.random.normal(keys[1], (WIDTH,)).astype(dtype)}
    x = jax.random.normal(keys[2], (MICROBATCHES, SEQUENCES, TOKENS, WIDTH))
    targets = jax.random.normal(keys[3], (MICROBATCHES, SEQUENCES, TOKENS))
    layers = [(r, c, n) for c in range(chunks) for r in range(RANKS) for n in range(lengths[c, r])]

    def plain(stack: jax.Array, ends: Any, x: jax.Array) -> tuple[jax.Array, Any]:
        counts = jnp.zeros((RANKS, chunks, 2, EXPERTS))
        for layer in layers:
            x, picked = block((x, jnp.zeros(EXPERTS)), stack[layer])
            counts = counts.at[layer].set(picked)
        return after(ends, x, targets), counts

    wide = jax.tree.map(lambda w: w.astype(jnp.float32), (stack, ends))
    (loss, counts), expected = jax.value_and_grad(plain, (0, 1, 2), has_aux=True)(*wide, x)

    def shares(x: jax.Array) -> jax.Array:
        """[ranks, microbatches, sequences, 1, tokens of a rank, ...]"""
        return jnp.moveaxis(x.reshape(*x.shape[:2], RANKS, 1, -1, *x.shape[3:]), 2, 0)

    def on_ranks(run: Any) -> Any:
        own = stack if chunks > 1 else stack[:, 0]
        ranks = jax.vmap(lambda *rows: run(block, after, None, rows[0], ends, *rows[1:]), axis_name="pp")
        return jax.jit(ranks)(own, shares(x), shares(targets))

    (found, grads, of_ends, *picks), dx = on_ranks(program._train)
    close = partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-4)
    close(found, [loss] * RANKS)
    close(on_ranks(program._losses), [loss] * RANKS)
    close(grads.reshape(expected[0].shape), expected[0])
    close(of_ends["head"], jnp.stack([expected[1]["head"]] * RANKS))
    close(dx, shares(expected[2]))
    assert len(picks) == bool(given.get("experts"))
    for picked in picks:  # those of padding are left out later
        held = np.arange(2) < lengths.T[..., None]
        np.testing.assert_array_equal(picked.reshape(counts.shape)[held], counts[held])


@pytest.mark.parametrize("balanced", [True, False])
def test_tokens_and_their_rows_are_cut_alike(balanced: bool) -> None:
    """Each rank of the pipeline has a part of each of the shards in which a sequence lies between blocks."""
    tables = {"MESH": {"pp": 2}, "SHARDS": 2, "MICROBATCH": 1, "with_sharding_constraint": lambda x, spec: x}
    tables["_ordered"] = lambda rows: rows[:, ::-1]
    program = variant("planc.backends.xla.program", "pipeline", tables, balanced=balanced)
    rows = np.arange(8)[None]
    cut = program._scatter_rows(program._in_shares(jnp.array(rows)), P())
    expected = (rows[:, ::-1] if balanced else rows).reshape(2, 2, 2).swapaxes(0, 1).reshape(2, 4)
    np.testing.assert_array_equal(cut[0, 0], expected)


@pytest.mark.parametrize("experts", [0, EXPERTS])
def test_a_loss_is_cut_at_its_layers(experts: int) -> None:
    """The parts before the layers and after them, each by itself, make up the loss."""
    tables = {"ENDS": {"hidden": P()}, "with_sharding_constraint": lambda x, spec: x, "MESH": {"pp": 1}}
    program = variant("planc.backends.xla.program", "pipeline", tables | {"MICROBATCH": 1}, experts=experts)

    def loss_fn(params: Any, tokens: jax.Array, targets: jax.Array) -> Any:
        x = params["table"][tokens]
        y = program.layers(block, (x, jnp.zeros(EXPERTS)) if experts else x, params["stack"])
        return (y[0].sum() + targets.sum(), y[1]) if experts else y.sum() + targets.sum()

    params = {"table": jnp.arange(6.0).reshape(3, 2), "stack": jnp.zeros((2, 2, 2))}
    tokens = jnp.array([[2, 0]])
    x = program._embed_microbatches(loss_fn, params, tokens)
    np.testing.assert_array_equal(x.reshape(2, 2), params["table"][tokens[0]])
    assert program._after_layers(loss_fn, params, jnp.ones((1, 2, 2)), tokens) == 4 + 2
    plain = loss_fn(params, tokens, tokens)
    assert (plain[0] if experts else plain) == params["table"][tokens].sum() + 2


def test_padding_of_short_stages_is_left_out_of_a_plain_scan() -> None:
    tables = {"STACK": ("pp",), "STAGE_LAYERS": (2, 1), "LAYERS": 2}
    program = variant("planc.backends.xla.program", "pipeline", tables, uneven=True)
    summed = program.layers(lambda x, layer: x + layer, jnp.float32(0), jnp.array([1.0, 2.0, 4.0, 100.0]))
    assert summed == 7
