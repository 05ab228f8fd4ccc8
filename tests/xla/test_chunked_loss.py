"""`loss in N chunks`: the program's own function computes the loss, and both gradients, that the whole logits give."""

from __future__ import annotations

import pytest

from planc.backends.xla.analysis.attention import runs_splash
from planc.backends.xla.analysis.peak_memory import Moments
from planc.backends.xla.refusals.plan import refusals
from planc.checks import check_plan
from planc.lowering import lower_plan
from tests.plans import propagated
from tests.xla.cases import FSDP, FSDP_TP, SPLASH, plan_of


@pytest.mark.parametrize("chunks", [2, 8])
def test_chunks_compute_what_whole_logits_do(chunks: int) -> None:
    import jax
    import jax.numpy as jnp

    from planc.backends.xla.models.llama import cross_entropy

    program = lower_plan(check_plan(plan_of("c", "fsdp 1", FSDP, f"loss in {chunks} chunks")), "xla").load()
    keys = jax.random.split(jax.random.key(0), 3)
    x, w = (jax.random.normal(key, shape) for key, shape in zip(keys[:2], ((2, 24, 64), (134, 64)), strict=True))
    targets = jax.random.randint(keys[2], (2, 24), 0, 134)

    def whole(x: jax.Array, w: jax.Array) -> jax.Array:
        return cross_entropy(x @ w.T, targets)

    def cut(x: jax.Array, w: jax.Array) -> jax.Array:
        loss: jax.Array = 3 * program.chunked_loss("output.weight", x, w, targets)
        return loss

    with jax.set_mesh(program.build_mesh(jax.devices("cpu")[:1])):
        loss, grads = jax.jit(jax.value_and_grad(cut, (0, 1)))(x, w)
        expected, gradients = jax.jit(jax.value_and_grad(whole, (0, 1)))(x, w)
    assert float(loss) == pytest.approx(3 * float(expected), rel=1e-6)
    assert all(bool(jnp.allclose(a, 3 * b, atol=1e-6)) for a, b in zip(grads, gradients, strict=True))


def test_a_chunk_of_the_logits_is_held() -> None:
    """The logits of a chunk, and the head's gradient, which other programs hold later, in fp32."""
    held = {}
    for chunks in (1, 4):
        sharded = propagated(
            plan_of("c", *FSDP_TP, SPLASH, f"loss in {chunks} chunks", batch="16 x 512 tokens microbatch 2")
        )
        assert runs_splash(sharded)
        held[chunks] = {m.name: m.buffers for m in Moments(sharded, ())._moments()}
    assert held[4]["backward of block"] < held[1]["backward of block"]


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        (("pp 2 > fsdp 2", FSDP, "use pp over pp as gpipe"), "share the head"),
        (("a 2 > b 2", "shard heads, vocab over a, b"), "equal parts of its vocabulary"),
        (("fsdp 2", FSDP, "compute bf16 reduce fp32", "quantize head as float8(rowwise)"), "multiplies in bf16"),
    ],
)
def test_what_the_function_does_not_compute_is_refused(layout: tuple[str, ...], why: str) -> None:
    found = refusals(propagated(plan_of("c", *layout, "loss in 2 chunks")))
    assert any(d.code == "E0901" and why in d.message for d in found)
