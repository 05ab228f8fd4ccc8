"""Run in one process of four virtual devices: each program by hand beside the emitted one, from the same weights.

`worker.py` prints, for each layout, what both compiled steps move and the losses of three steps.
`worker.py PAIRS` prints the seconds of so many steps of each, in turn.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from planc.backends.xla.audit.inventory import inventory
from planc.backends.xla.runtime.start_up import prepare_environment
from planc.checks import check_plan
from planc.ir.plan import Plan
from planc.lowering import lower_plan
from tests.seeded import batches, initial
from tests.xla.cases import FSDP, SP, SPLASH, TP, plan_of

LAYOUTS: dict[str, tuple[str, ...]] = {
    "fsdp": ("fsdp 4", FSDP, "recompute blocks"),
    "kernel": ("fsdp 4", FSDP, SPLASH, "recompute blocks"),
    "tensor": ("fsdp 2 > tp 2", FSDP, TP, SP, "recompute blocks"),
    "pipeline": ("pp 2 > fsdp 2", FSDP, "gather params per step", "use pp over pp as 1f1b", "recompute blocks"),
}
MICROBATCH = {"fsdp": 1, "kernel": 1, "tensor": 4, "pipeline": 2}
WIDE = {
    "batch": "16 x 128 tokens microbatch 1",
    "model": "llama_micro(layers = 2, embed = 256, head_dim = 128, heads = 4, kv_heads = 2)",
}
"""The batch and model of the layout whose attention runs on a kernel, which takes heads of 128 elements."""
SCALARS_BYTES = 160
"""The loss and the norms: nobody's order of them is the only one."""
LR = 1e-3


class Program:
    """A compiled step, its state and its batch. `run()` takes a step and gives its loss."""

    def __init__(self, step: Any, state: Any, arguments: tuple[Any, ...], loss_of: Callable[[Any], Any]) -> None:
        self.compiled = step.lower(state, *arguments).compile()
        self._state, self._arguments, self._loss_of = state, arguments, loss_of

    def run(self) -> float:
        self._state, told = self.compiled(self._state, *self._arguments)
        return float(self._loss_of(told))


def plan(name: str, **more: str) -> Plan:
    """The plan of a layout; `more` as for `plan_of`."""
    mesh, *sentences = LAYOUTS[name]
    batch = f"16 x 24 tokens microbatch {MICROBATCH[name]}"
    return plan_of(f"beside_{name}", mesh, *sentences, **{"batch": batch, **(WIDE if name == "kernel" else {}), **more})


def weights(plan: Plan) -> dict[str, np.ndarray]:
    """Every parameter by name, those of the layers stacked."""
    model = plan.model

    def of(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if "*" not in name:
            return initial(name, shape)
        return np.stack([initial(name.replace("*", str(n)), shape) for n in range(model.layers)])

    return {p.name: of(p.name, model.shape(p)) for p in model.params}


def by_hand(name: str) -> tuple[Program, dict[str, int]]:
    """The program that was written by hand, and its mesh."""
    import jax

    program, of = import_module(f"tests.xla.by_hand.{name}"), plan(name)
    mesh = program.build_mesh()
    ((tokens, targets),) = batches(of, 1)
    with jax.sharding.set_mesh(mesh), jax.default_matmul_precision("highest"):
        state, step = program.build(mesh, weights(of))
        return Program(step, state, (program.shaped(tokens), program.shaped(targets)), lambda loss: loss), mesh.shape


def emitted(name: str) -> tuple[Program, dict[str, int]]:
    """The one that planc writes, with the bundled model."""
    from planc.backends.xla.models import family

    of = plan(name)
    program, module = lower_plan(check_plan(of), "xla").load(), family(of.model.family)
    mesh, optimizer, params = program.build_mesh(), program.adamw(), weights(of)
    state = program.init_state(params, optimizer, mesh)
    step = program.build_train_step(module.build_loss(of.model, program), optimizer, mesh, params)
    ((tokens, targets),) = batches(of, 1)
    return Program(step, state, (tokens, targets, np.float32(LR)), lambda told: told["loss"]), program.MESH


def observed(made: tuple[Program, dict[str, int]]) -> dict[str, Any]:
    """Bytes that a device sends and receives in a step by `OP AXES dtype`, and the losses of three steps."""
    program, mesh = made
    found: Counter[str] = Counter()
    for row in inventory(program.compiled.as_text(), dict(mesh)).found:
        if row.payload_bytes > SCALARS_BYTES:
            found[f"{row.op} {row.axis} {row.dtype}"] += round(row.wire_bytes)
    return {"losses": [program.run() for _ in range(3)], "wire_bytes": dict(found)}


def seconds(name: str, pairs: int) -> list[tuple[float, float]]:
    """(emitted, by hand) of so many steps in turn, the first of each pair alternating; two rounds do not count."""
    programs = (emitted(name)[0], by_hand(name)[0])
    found = []
    for number in range(pairs + 2):
        took = [0.0, 0.0]
        for which in (0, 1) if number % 2 else (1, 0):
            began = time.perf_counter()
            programs[which].run()
            took[which] = time.perf_counter() - began
        found.append((took[0], took[1]))
    return found[2:]


def main(pairs: int) -> None:
    prepare_environment(4)
    for name in LAYOUTS:
        if pairs:
            row: dict[str, Any] = {"seconds": seconds(name, pairs)}
        else:
            row = {"emitted": observed(emitted(name)), "by_hand": observed(by_hand(name))}
        print("ROW", json.dumps({"name": name, **row}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
