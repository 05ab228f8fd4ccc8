"""Run in one process of eight virtual devices: users' models under plans, beside the same models on one device.

Each case is `TREE:LAYOUT`; a line of JSON for each says how far losses, gradients and parameters are apart, and where
the leaves lie.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from planc.backends.xla.runtime.start_up import prepare_environment
from planc.driver import lower
from planc.ir.plan import Plan
from tests.seeded import batches
from tests.xla_flags import QUICKLY_COMPILED

STEPS = 3
LR = 2e-4
FSDP, TP, SP = "use fsdp over fsdp", "use tp over tp", "use sp over tp"
LAYOUTS: dict[str, tuple[str, ...]] = {
    "fsdp": ("fsdp 8", FSDP),
    "fsdp_tp": ("fsdp 4 > tp 2", FSDP, TP),
    "fsdp_tp_sp": ("fsdp 4 > tp 2", FSDP, TP, SP),
    "zero1_tp": ("dp 4 > tp 2", "use zero1 over dp", TP),
}


def text_of(layout: str) -> str:
    """A plan of this layout."""
    mesh, *sentences = LAYOUTS[layout]
    head = ("plan users", "model llama_micro", "batch 16 x 24 tokens microbatch 2", "cluster 8 x cpu_local")
    return "\n".join((*head, f"mesh {mesh}", "compute fp32 reduce fp32", *sentences)) + "\n"


def train(tree: Any, plan: Plan, constrain: Any, put: Callable[[Any, Any], Any], out: Any) -> dict[str, Any]:
    """Losses, gradients and parameters of three steps with AdamW; `put` lays out parameters and optimizer state."""
    import jax
    import jax.numpy as jnp
    import optax

    optimizer = optax.adamw(LR, eps=1e-5)

    def loss(params: Any, tokens: Any, targets: Any) -> Any:
        logits = tree.logits(params, tokens, constrain)
        picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)

    def step(params: Any, state: Any, tokens: Any, targets: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, tokens, targets)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value, gradients

    params, state = put(tree.params, optimizer.init(tree.params))
    jitted = jax.jit(step, out_shardings=out)
    found: dict[str, Any] = {"loss": [], "gradients": []}
    for tokens, targets in batches(plan, STEPS):
        params, state, value, gradients = jitted(params, state, tokens, targets)
        found["loss"].append(float(value))
        found["gradients"].append([np.asarray(g) for g in jax.tree.leaves(gradients)])
    return {**found, "params": params, "state": state}


def divided(tree: Any, layout: str, folder: Path) -> tuple[dict[str, Any], Any, Any]:
    """The result of `train` for a tree under a plan, the program, and the parameters' shardings."""
    import jax
    import optax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    path = folder / f"{layout}.plan"
    path.write_text(text_of(layout))
    path.with_suffix(".rules").unlink(missing_ok=True)
    if isinstance(tree.rules, str):
        path.with_suffix(".rules").write_text(tree.rules)
    program = lower(path, "xla")
    emitted = program.load()
    rules = tree.rules if isinstance(tree.rules, dict) else None
    model = (lambda p, tokens: tree.logits(p, tokens, lambda _, x: x)) if tree.rules is None else None
    where = program.shardings(tree.params, rules, model=model)
    mesh = emitted.build_mesh()
    shapes = jax.eval_shape(optax.adamw(LR, eps=1e-5).init, tree.params)
    if rules is not None:  # patterns that begin with a star are of moments too
        moments = program.shardings(shapes, rules, noun="optimizer")
    else:
        moments = optax.tree_map_params(
            optax.adamw(LR, eps=1e-5),
            lambda _, place: place,
            shapes,
            program.shardings(tree.params, model=model, noun="optimizer"),
            transform_non_params=lambda _: NamedSharding(mesh, P()),
        )
    rows = NamedSharding(mesh, emitted.BATCH)

    def put(params: Any, state: Any) -> Any:
        return jax.device_put(params, where), jax.device_put(state, moments)

    def constrain(name: str, x: Any) -> Any:
        return emitted.constrain(name, x)

    with jax.set_mesh(mesh):
        placed = tree._replace(
            logits=lambda p, tokens, hook: tree.logits(p, jax.lax.with_sharding_constraint(tokens, rows), hook)
        )
        found = train(placed, program.plan, constrain, put, (where, moments, NamedSharding(mesh, P()), where))
    return found, program, where


def row_of(name: str, references: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The differences of one case, and the layouts of its leaves."""
    import jax

    from tests.xla.user_trees import TREES, unconstrained

    kind, layout = name.split(":")
    tree = TREES[kind]()
    found, program, where = divided(tree, layout, folder)
    if kind not in references:
        references[kind] = train(tree, program.plan, unconstrained, lambda *state: state, None)
    reference = references[kind]
    leaves = list(zip(jax.tree_util.tree_leaves_with_path(found["params"]), jax.tree.leaves(where), strict=True))
    held = sum(array.addressable_shards[0].data.nbytes for (_, array), _ in leaves)
    moments = [array for array in jax.tree.leaves(found["state"]) if array.ndim]
    return {
        "loss": max(abs(a - b) / abs(b) for a, b in zip(found["loss"], reference["loss"], strict=True)),
        "losses": found["loss"],
        "gradient": [
            max(gap(a, b) for a, b in zip(one, other, strict=True))
            for one, other in zip(found["gradients"], reference["gradients"], strict=True)
        ],
        "parameters": max(
            float(np.abs(np.asarray(a) - np.asarray(b)).max())
            for a, b in zip(jax.tree.leaves(found["params"]), jax.tree.leaves(reference["params"]), strict=True)
        ),
        "share": held / sum(array.nbytes for (_, array), _ in leaves),
        "share_of_moments": sum(a.addressable_shards[0].data.nbytes for a in moments) / sum(a.nbytes for a in moments),
        "specs": {jax.tree_util.keystr(p, simple=True, separator="/"): str(tuple(w.spec)) for (p, _), w in leaves},
        "astray": [str(p) for (p, array), w in leaves if not array.sharding.is_equivalent_to(w, array.ndim)],
    }


def gap(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, against the largest element."""
    return float(np.abs(found - expected).max() / max(float(np.abs(expected).max()), 1e-30))


def main(names: list[str]) -> None:
    os.environ["XLA_FLAGS"] = QUICKLY_COMPILED
    prepare_environment(8)
    references: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            began = time.monotonic()
            try:
                row = row_of(name, references, Path(folder))
            except Exception:
                row = {"failed": traceback.format_exc(limit=-6)}
            print("ROW", json.dumps({"name": name, "seconds": time.monotonic() - began, **row}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
