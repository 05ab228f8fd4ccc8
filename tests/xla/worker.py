"""Run in one process of eight virtual devices: trains each named layout and one device, and compares.

Prints one line of JSON per layout: the largest differences per step.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from planc.backends.common.sequence_order import held_order
from planc.backends.xla.audit.inventory import inventory
from planc.backends.xla.runtime.start_up import prepare_environment, start, start_single
from planc.checks import check_plan
from planc.ir.plan import Plan
from planc.ir.session import Settings
from planc.lowering import lower_plan
from tests.seeded import EPS, batches, initial
from tests.xla.cases import FLOAT8, LAYOUTS, NARROW, NARROW_STATE, plan_of
from tests.xla.in_fp64 import in_fp64
from tests.xla.moe_cases import BALANCE, BALANCED, MOE, MOE_ROUNDED, moe_plan
from tests.xla_flags import QUICKLY_COMPILED

STEPS, CHECKED = 3, (1, 3)
LR = 2e-4
SCALARS_BYTES = 16
"""A collective of no more is of a few numbers: the loss, the norm's parts. Integers are counts of picks."""


def train(session: Any, plan: Plan) -> dict[str, Any]:
    """Losses, norms, the gradients of the checked steps and the parameters after the last."""
    found: dict[str, Any] = {"loss": [], "norm": [], "gradients": {}}
    for number, (tokens, targets) in enumerate(batches(plan, STEPS), start=1):
        loss, norm = session.step(tokens, targets, lr=LR)
        found["loss"].append(loss)
        found["norm"].append(norm)
        if number in CHECKED:
            found["gradients"][number] = dict(session.gradients())
    found["evaluated"] = [session.evaluate(tokens, targets)]
    found["parameters"] = dict(session.parameters())
    found["picks"] = session.routing()
    found["uncached"] = session.compile_facts().uncached
    found["text"] = session._compiled.as_text()
    session.close()
    return found


def difference(found: dict[str, Any], reference: dict[str, Any]) -> dict[str, Any]:
    """The largest relative differences; arrays per parameter, against its largest element."""
    gaps = {n: _gaps(found["gradients"][n], reference["gradients"][n]) for n in CHECKED}
    moved = _gaps(found["parameters"], reference["parameters"])
    worst = {n: max(gaps[n], key=lambda name: gaps[n][name]) for n in CHECKED}
    return {
        "gradient": [gaps[n][worst[n]] for n in CHECKED],
        "where": [worst[n] for n in CHECKED],
        "dead": [name for name, g in reference["gradients"][1].items() if not np.abs(g).max()],
        "parameters": max(moved.values()),
        "loss": relative(found["loss"], reference["loss"]),
        "norm": relative(found["norm"], reference["norm"]),
        "evaluated": relative(found["evaluated"], reference["evaluated"]),
        "uncached": found["uncached"],
        "flips": flips(found["picks"], reference["picks"]),
    }


def _gaps(found: dict[str, np.ndarray], reference: dict[str, np.ndarray]) -> dict[str, float]:
    assert list(found) == list(reference)
    return {
        name: float(np.abs(found[name] - expected).max() / np.abs(expected).max())
        for name, expected in reference.items()
    }


def flips(found: Any, expected: Any) -> int | None:
    """Picks of experts that one device made otherwise; None for a model without."""
    return None if found is None else int(np.abs(np.array(found) - np.array(expected)).sum()) // 2


def wire(text: str, mesh: dict[str, int]) -> dict[str, float]:
    """Bytes that a device sends in the compiled step, by `OP AXES`; scalars are left out."""
    found: Counter[str] = Counter()
    for row in inventory(text, mesh).found:
        if row.payload_bytes > SCALARS_BYTES and row.dtype != "int32":
            found[f"{row.op} {row.axis}"] += round(row.wire_bytes)
    return dict(found)


def relative(found: list[float], expected: list[float]) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True))


def _reference(plan: Plan) -> tuple[object, ...]:
    """The facts that one device's training depends on: the model, and which tokens an expert has no place for."""
    from planc.backends.xla.runtime.reference import rounding_of

    rounding = rounding_of(plan)
    narrow = [(q.ops, q.dtype, q.recipe, q.kept, q.kept_layers) for q in plan.quantize]
    kept = () if rounding is None else (str(rounding), repr(narrow))
    model = (plan.model.name, *sorted(plan.model.sizes.items()))
    if plan.route.method == "dropless":
        return *model, plan.batch.sequences, plan.batch.sequence_tokens, *kept
    shares = plan.mesh.size(*plan.axes_of("sequence", "residual"))
    return *model, plan.route.factor, shares, tuple(held_order(plan)), *kept


def main(names: list[str]) -> None:
    os.environ["XLA_FLAGS"] = QUICKLY_COMPILED
    prepare_environment(8)
    import jax

    from tests.xla import ragged

    jax.lax.ragged_all_to_all = ragged.by_gathers  # type: ignore[assignment]
    jax.lax.empty = ragged.poison  # type: ignore[assignment]
    references: dict[Any, dict[str, Any]] = {}
    for name in names:
        began = time.monotonic()
        routed = {**MOE, **MOE_ROUNDED}
        sentences = routed[name] if name in routed else {**LAYOUTS, **NARROW, **NARROW_STATE, **FLOAT8}[name]
        plan = moe_plan(name) if name in routed else plan_of(name, *sentences)
        balance = BALANCE if name in BALANCED else 0.0
        program, settings = lower_plan(check_plan(plan), "xla"), Settings(eps=EPS, balance_loss=balance)
        wide = name in {**NARROW_STATE, **FLOAT8, **MOE_ROUNDED}
        try:
            if wide:
                program, settings = in_fp64(program), replace(settings, clip_norm=0.0)
            same = (*_reference(plan), balance)
            if same not in references:
                references[same] = train(start_single(program, settings, initial, keep_gradients=True), plan)
            found = train(start(program, settings, initial, keep_gradients=True), plan)
            row = difference(found, references[same]) | {"wire": wire(found["text"], program.load().MESH)}
        except Exception:
            row = {"failed": traceback.format_exc(limit=-4)}
        about = {"name": name, "model": plan.model.name, "plan": sentences}
        print("ROW", json.dumps({**about, "seconds": time.monotonic() - began, **row}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
