"""Run by the Python of the torch_xla environment, in one process of four virtual devices: trains each named layout
and one undivided torch process of the same module, and compares.

Prints one line of JSON per layout: the largest differences, and what torch_xla's counters say.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from planc.backends.torch_xla.runtime.start_up import prepare_environment, start
from planc.checks import check_plan
from planc.ir.plan import Plan
from planc.ir.session import Settings
from planc.lowering import lower_plan
from tests.seeded import batches, initial
from tests.torch_xla.cases import LAYOUTS, layout

STEPS, CHECKED = 3, (1, 3)
LR, EPS = 2e-4, 1e-5
"""Wide enough an epsilon that AdamW does not turn the rounding of a gradient near zero into a step of its own."""
CLIP = 0.5
"""Below the first norms, so that clipping takes part."""


def train(session: Any, plan: Plan, clipped: bool) -> dict[str, Any]:
    """Losses, norms, the clipped gradients of the checked steps and the parameters after the last."""
    found: dict[str, Any] = {"loss": [], "norm": [], "gradients": {}}
    for number, (tokens, targets) in enumerate(batches(plan, STEPS), start=1):
        loss, norm = session.step(tokens, targets, lr=LR * number)
        found["loss"].append(loss)
        found["norm"].append(norm)
        if number in CHECKED:
            scale = 1.0 if clipped else min(1.0, CLIP / (norm + 1e-6))
            found["gradients"][number] = {name: g * scale for name, g in session.gradients()}
    found["evaluated"] = [session.evaluate(tokens, targets)]
    found["parameters"] = dict(session.parameters())
    return found


def reference(plan: Plan, settings: Settings) -> dict[str, Any]:
    """The same module in torch alone, on the CPU."""
    from planc.backends.cuda.runtime.start_up import start_single

    return train(start_single(lower_plan(check_plan(plan), "xla", "torch_xla"), settings, initial), plan, clipped=True)


def row_of(plan: Plan, settings: Settings, references: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The layout's row. torch_xla comes first: a backward before its devices are there would leave them out."""
    session = start(lower_plan(check_plan(plan), "xla", "torch_xla"), settings, initial)
    found = train(session, plan, clipped=False)
    same = (
        plan.model.name if plan.route.method == "dropless" else plan.name
    )  # which rows have no place depends on ranks
    if same not in references:
        references[same] = reference(plan, settings)
    expected = references[same]
    gaps = {n: _gaps(found["gradients"][n], expected["gradients"][n]) for n in CHECKED}
    facts = session.compile_facts()
    before = session._count("aten::_local_scalar_dense")
    float(session._optimizer.steps)
    return {
        "gradient": [max(gaps[n].values()) for n in CHECKED],
        "where": [max(gaps[n], key=lambda name: gaps[n][name]) for n in CHECKED],
        "dead": [name for name, g in expected["gradients"][1].items() if not np.abs(g).max()],
        "parameters": max(_gaps(found["parameters"], expected["parameters"]).values()),
        "clips": expected["norm"][0] > CLIP,
        "loss": _relative(found["loss"], expected["loss"]),
        "norm": _relative(found["norm"], expected["norm"]),
        "evaluated": _relative(found["evaluated"], expected["evaluated"]),
        "uncached": facts.uncached,
        "scalar_reads": facts.scalar_reads,
        "reads_of_a_leak": session._count("aten::_local_scalar_dense") - before,
        "layouts": session.layouts(),
        "resumed": _resumed(session, plan),
        "products": products(plan),
    }


def products(plan: Plan) -> dict[str, int]:
    """How many matrix products the traced program of a microbatch has, and how many barriers before what is replayed:
    of its loss alone, and with its gradients."""
    from importlib import import_module

    import torch

    from planc.backends.torch_xla.runtime.session import filled

    program = lower_plan(check_plan(plan), "xla", "torch_xla")
    emitted = program.load()
    mesh = emitted.build_mesh()
    model = emitted.parallelize(filled(program, initial), mesh)
    loss_of = emitted.build_loss(model, mesh)
    ((tokens, targets),) = batches(plan, 1)
    rows, labels = (emitted._rows(array[: emitted.MICROBATCH], mesh)[0] for array in (tokens, targets))
    loss = loss_of(rows, labels)
    with torch.autograd.set_multithreading_enabled(False):
        found = torch.autograd.grad(loss, list(model.parameters()))
    text_of = import_module("torch_xla")._XLAC._get_xla_tensors_hlo
    forward, both = text_of([loss]), text_of(list(found))
    return {"forward": forward.count(" dot("), "both": both.count(" dot("), "barriers": both.count(" opt-barrier(")}


def _resumed(session: Any, plan: Plan) -> dict[str, Any]:
    """Put the state back as it was, and take a step twice: the same bits, and nothing compiled for it."""
    kept = {}
    for piece in session.pieces():
        kept[piece.name] = np.empty(piece.size, np.float32)
        piece.copy_to(kept[piece.name])
    steps = session.optimizer_steps
    ((tokens, targets),) = batches(plan, 1)
    first = session.step(tokens, targets, lr=LR)
    after = dict(session.parameters())
    session.restore(lambda name, box: kept[name][box], steps)
    second = session.step(tokens, targets, lr=LR)
    again = dict(session.parameters())
    return {
        "same": first == second and all(np.array_equal(after[name], again[name]) for name in after),
        "misplaced": session.misplaced(),
        "uncached": session.compile_facts().uncached,
    }


def _gaps(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> dict[str, float]:
    assert set(found) == set(expected)
    return {name: float(np.abs(found[name] - e).max() / np.abs(e).max()) for name, e in expected.items()}


def _relative(found: list[float], expected: list[float]) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True))


def main(names: list[str]) -> None:
    os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"  # halves what a compile takes
    prepare_environment(4)
    settings = Settings(eps=EPS, clip_norm=CLIP)
    references: dict[str, dict[str, Any]] = {}
    for name in names:
        began, plan = time.monotonic(), layout(name)
        try:
            row = row_of(plan, settings, references)
        except Exception:
            row = {"failed": traceback.format_exc(limit=-4)}
        about = {"name": name, "model": plan.model.name, "plan": LAYOUTS[name]}
        print("ROW", json.dumps({**about, "seconds": time.monotonic() - began, **row}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
