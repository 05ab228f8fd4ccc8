"""Run in one process of eight virtual devices: trains each named layout and one device, and compares.

Prints one line of JSON per layout: the largest differences per step.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
from cases import LAYOUTS, NARROW, plan_of

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from planc.backends.xla.lower import lower
from planc.backends.xla.runtime import prepare_environment, start, start_single
from planc.ir.plan import Plan
from planc.ir.session import Settings
from planc.sharding import propagate
from tests.seeded import batches, initial

STEPS, CHECKED = 3, (1, 3)
LR = 2e-4
EPS = 1e-5
"""Wide enough that AdamW does not turn the rounding of a gradient near zero into a step of its own."""


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
    found["uncached"] = session.compile_facts().uncached
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
    }


def _gaps(found: dict[str, np.ndarray], reference: dict[str, np.ndarray]) -> dict[str, float]:
    assert list(found) == list(reference)
    return {
        name: float(np.abs(found[name] - expected).max() / np.abs(expected).max())
        for name, expected in reference.items()
    }


def relative(found: list[float], expected: list[float]) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True))


def main(names: list[str]) -> None:
    os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"  # halves what a compile takes
    prepare_environment(8)
    reference: dict[str, Any] = {}
    for name in names:
        began = time.monotonic()
        sentences = {**LAYOUTS, **NARROW}[name]
        plan = plan_of(name, *sentences)
        program, settings = lower(propagate(plan)), Settings(eps=EPS)
        try:
            if not reference:
                reference = train(start_single(program, settings, initial, keep_gradients=True), plan)
            found = train(start(program, settings, initial, keep_gradients=True), plan)
            row = difference(found, reference)
        except Exception:
            row = {"failed": traceback.format_exc(limit=-4)}
        about = {"name": name, "model": plan.model.name, "plan": sentences}
        print("ROW", json.dumps({**about, "seconds": time.monotonic() - began, **row}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
