"""Run in one process of four virtual devices: the StableHLO of a layout's step, at the start and after steps.

`stable.py STEPS NAME...` prints, for each layout: the hash of the step lowered before the first step and after
each; after the last, the leaves of the state that do not rest where the plan says, and those that a checkpoint
does not bring back; and whether a step gave up the arrays it was given.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from planc.backends.xla.runtime.start_up import prepare_environment
from planc.checks import check_plan
from planc.ir.model import Model
from planc.lowering import lower_plan
from tests.seeded import batches, initial
from tests.xla.cases import LAYOUTS, plan_of
from tests.xla_flags import QUICKLY_COMPILED


def main(steps: int, names: list[str]) -> None:
    os.environ["XLA_FLAGS"] = QUICKLY_COMPILED
    prepare_environment(4)
    for name in names:
        print("ROW", json.dumps({"name": name, **trained(name, steps)}), flush=True)


def trained(name: str, steps: int) -> dict[str, Any]:
    import jax

    from planc.backends.xla.analysis.stacked_params import stacks_of
    from planc.backends.xla.models import family
    from planc.backends.xla.runtime import shards

    plan = plan_of(name, *LAYOUTS[name])
    emitted, model = lower_plan(check_plan(plan), "xla").load(), plan.model
    module, mesh, optimizer = family(model.family), emitted.build_mesh(), emitted.adamw()
    stacks = stacks_of(plan)
    shapes = shards.abstract(shards.restacked(module.shapes(model), stacks))
    state = emitted.init_state(shards.fill(model, emitted.shardings(mesh, shapes), initial, stacks), optimizer, mesh)
    step = emitted.build_train_step(module.build_loss(model, emitted), optimizer, mesh, shapes)
    where = emitted.state_shardings(mesh, shapes, optimizer)
    hashes, given_up = [], True
    for tokens, targets in batches(plan, steps + 1):
        given = (state, tokens, targets, np.float32(1e-3))
        hashes.append(hashlib.sha256(step.lower(*given).as_text().encode()).hexdigest())
        if len(hashes) <= steps:
            state, _ = step(*given)
            given_up &= all(leaf.is_deleted() for leaf in jax.tree.leaves(given[0]["params"]))
    changed = differing(state, round_trip(model, state, where, steps, stacks))
    return {"hashes": hashes, "astray": shards.misplaced(state, where), "given_up": given_up, "changed": changed}


def round_trip(model: Model, state: Any, where: Any, steps: int, stacks: Any) -> Any:
    """The state through the pieces of a checkpoint, as whole tensors by name, and back."""
    from planc.backends.xla.runtime.state import pieces, restored

    saved: dict[str, np.ndarray] = {}
    for piece in pieces(model, lambda: state, stacks):
        whole = saved.setdefault(piece.name, np.full(piece.shape, np.nan, np.float32))
        piece.copy_to(whole[tuple(slice(o, o + n) for o, n in zip(piece.offset, piece.size, strict=True))])
    assert all(np.isfinite(whole).all() for whole in saved.values()), "a part of the state was in no piece"
    return restored(model, state, where, lambda name, index: saved[name][index], steps, stacks)


def differing(state: Any, other: Any) -> list[str]:
    """Paths of the leaves that are not equal."""
    import jax

    pairs = zip(jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(other), strict=True)
    return [jax.tree_util.keystr(path) for (path, a), b in pairs if not np.array_equal(np.asarray(a), np.asarray(b))]


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
