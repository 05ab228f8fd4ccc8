# ruff: noqa: E402
"""An emitted file at work with jax alone and a user's own model. Run in a fresh process; planc is barred.

The model is not the bundled one: no attention, layers unrolled in a Python loop, parameters in nested
dicts and lists. `argv[1]` is the emitted file; prints the largest differences from one device.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys

sys.modules["planc"] = None
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"
os.environ["JAX_PLATFORMS"] = "cpu"

from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

LAYERS, EMBED, FFN, VOCAB = 4, 64, 182, 134
LR = 1e-3


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("emitted", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parameters() -> dict[str, Any]:
    stream = np.random.default_rng(0)

    def draw(*shape: int) -> dict[str, np.ndarray]:
        return {"weight": 0.1 * stream.standard_normal(shape, dtype=np.float32)}

    layers = [
        {"ffn_norm": draw(EMBED), "feed_forward": {"w1": draw(FFN, EMBED), "w2": draw(EMBED, FFN)}}
        for _ in range(LAYERS)
    ]
    return {"tok_embeddings": draw(VOCAB, EMBED), "layers": layers, "output": draw(VOCAB, EMBED)}


def build_loss(hooks: Any) -> Any:
    def block(x: jax.Array, layer: Any) -> jax.Array:
        scale = 1 + hooks.weight("layers.*.ffn_norm.weight", layer["ffn_norm"]["weight"])
        inner = hooks.constrain("ffn.in", x * scale)
        w1, w2 = (layer["feed_forward"][name]["weight"] for name in ("w1", "w2"))
        mid = hooks.constrain("ffn.mid", jnp.tanh(hooks.linear("layers.*.feed_forward.w1.weight", inner, w1)))
        return hooks.constrain("hidden", x + hooks.linear("layers.*.feed_forward.w2.weight", mid, w2))

    def loss(params: Any, tokens: jax.Array, targets: jax.Array) -> jax.Array:
        table = hooks.weight("tok_embeddings.weight", params["tok_embeddings"]["weight"])
        x = hooks.constrain("hidden", table[tokens])
        for layer in params["layers"]:
            x = hooks.remat(block)(x, layer)
        logits = hooks.constrain("logits", hooks.linear("output.weight", x, params["output"]["weight"]))
        return optax.softmax_cross_entropy(logits, jax.nn.one_hot(targets, VOCAB)).mean()

    return loss


PLAIN = SimpleNamespace(
    constrain=lambda _, x: x,
    weight=lambda _, w: w,
    linear=lambda _, x, w: x @ w.T,
    remat=lambda block: block,
)


def main(path: str) -> None:
    emitted, params = load(path), parameters()
    stream = np.random.default_rng(1)
    tokens = stream.integers(0, VOCAB, (16, 24), dtype=np.int32)
    targets = np.roll(tokens, -1, axis=1)

    mesh, optimizer = emitted.build_mesh(), emitted.adamw(eps=1e-5)
    state = emitted.init_state(params, optimizer, mesh)
    step = emitted.build_train_step(build_loss(emitted), optimizer, mesh, params)
    losses = []
    for _ in range(3):
        state, metrics = step(state, tokens, targets, LR)
        losses.append(float(metrics["loss"]))

    decayed = jax.tree.map(lambda w: w.ndim > 1, params)
    reference = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(LR, 0.9, 0.95, eps=1e-5, weight_decay=0.1, mask=decayed),
    )
    plain, moments = params, reference.init(params)
    expected = []
    for _ in range(3):
        loss, grads = jax.jit(jax.value_and_grad(build_loss(PLAIN)))(plain, tokens, targets)
        updates, moments = reference.update(grads, moments, plain)
        plain = optax.apply_updates(plain, updates)
        expected.append(float(loss))

    gaps = jax.tree.map(lambda a, b: float(np.abs(a - b).max() / np.abs(b).max()), state["params"], plain)
    where = state["params"]["layers"][1]["feed_forward"]["w1"]["weight"].sharding.spec
    print(
        json.dumps(
            {
                "loss": max(abs(a - b) / b for a, b in zip(losses, expected, strict=True)),
                "fell": expected[0] - expected[-1],
                "parameters": max(jax.tree.leaves(gaps)),
                "w1": str(where),
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
