"""A launch that trains plan files one after the other beside one process, and compares them.

`worker.py STACK FILE ...` prints `ROW {json}` for each. It loads the stack once, and each plan's ranks are its forks.
With `--first-step` before the files no rank is there, and a step is traced or compiled (`first_step.py`).
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from planc.checks import check_plan
from planc.ir.plan import Plan
from planc.ir.program import Program
from planc.ir.session import Settings
from planc.language.build import build_file
from planc.lowering import lower_plan
from tests.plans import propagated
from tests.random_plans.forks import Row, forked
from tests.random_plans.train import DEVICES
from tests.seeded import EPS
from tests.xla_flags import QUICKLY_COMPILED

LATE_S = float(os.environ.get("RANDOM_LATE_S", "900"))
"""Longest wall time of a case: a rank that takes longer hangs."""


def plan_of(path: Path, target: str) -> Plan:
    plan = build_file(path, target=target).plan
    assert plan is not None, path
    return plan


def settings_of(plan: Plan, **more: Any) -> Settings:
    """The plan's optimizer, and for a model with experts now and then the loss that balances them."""
    balanced = plan.model.top_k and plan.batch.sequences % 3
    return Settings(optimizer=plan.optimizer.name, balance_loss=0.1 if balanced else 0.0, **more)


def cuda_case(path: Path, folder: Path) -> tuple[int, Callable[[int], Row]]:
    """The plan's ranks on gloo, with rank 0 alone as well; its collectives as observed and as predicted."""
    import torch
    import torch.distributed as dist

    from planc.backends.cuda.audit.observe import meshes_of
    from planc.backends.cuda.runtime.start_up import start
    from tests.cuda import worker
    from tests.cuda.routing import Watch

    plan = plan_of(path, "cuda")
    sharded = propagated(plan)
    program, settings = lower_plan(check_plan(sharded.plan), "cuda"), settings_of(plan, eps=EPS)
    ranks = plan.mesh.devices

    def train(rank: int) -> Row:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
        session = start(program, settings, worker.initial)
        observer = Watch(program.load(), *meshes_of(program.load(), session.mesh))
        found = worker.train(session, plan, observer)
        counted = settings.balance_loss and plan.axes_of("sequence", "residual")
        # Counts of picks travel between the parts of a sequence, for the sake of a setting that no plan has.
        differing = [] if counted else worker.unpredicted(sharded, session.mesh, observer)
        row: Row = {"collectives": differing}
        if rank == 0:
            row |= worker.difference(found, worker.reference(plan, program, settings, None, {}))
        dist.barrier()  # nobody leaves while another still talks to it
        return row

    return ranks, train


def xla_case(path: Path, folder: Path) -> tuple[int, Callable[[int], Row]]:
    """One process of virtual devices, and of one; bytes on the wire as compiled and as predicted."""
    from planc.backends.xla.runtime.start_up import start, start_single
    from tests.random_plans.train import over
    from tests.seeded import initial
    from tests.xla import worker
    from tests.xla.in_fp64 import in_fp64, with_state

    plan = plan_of(path, "xla")
    program, settings = lower_plan(check_plan(plan), "xla"), settings_of(plan, eps=EPS)

    def compared(program: Program) -> tuple[Row, str]:
        many, one = (run(program, settings, initial, keep_gradients=True) for run in (start, start_single))
        found, reference = (worker.train(with_state(session), plan) for session in (many, one))
        reference = {**reference, "gradients": {n: _not_zero(g) for n, g in reference["gradients"].items()}}
        return worker.difference(found, reference), found["text"]

    def train(rank: int) -> Row:
        row, text = compared(program)
        seen, expected = worker.wire(text, program.load().MESH), predicted(plan)
        wire = {k: [expected.get(k, 0), seen.get(k, 0)] for k in seen.keys() | expected.keys()}
        if over(row, path.read_text()):  # Muon magnifies rounding: in fp64 a wrong program is as wrong as before
            row = compared(in_fp64(program))[0] | {"fp64": True}
        return row | {"wire": {k: v for k, v in wire.items() if abs(v[0] - v[1]) > 200}}

    return 1, train


def _not_zero(gradients: dict[str, Any]) -> dict[str, Any]:
    """Gradients with something where all is zero, as of an expert without tokens: nothing is divided by 0."""
    return {name: g if abs(g).max() else g + 1e-30 for name, g in gradients.items()}


def predicted(plan: Plan) -> dict[str, int]:
    """Bytes that a device of the first stage sends in a step, by operation and axes."""
    from planc.backends.xla.analysis.mesh_factors import parts
    from planc.backends.xla.rules import realise
    from planc.sharding.collectives import semantic_collectives

    sharded = propagated(plan)
    wire: Counter[str] = Counter()
    for row in realise(sharded, semantic_collectives(sharded)):
        if row.carries != "scalar" and row.stage == 0:
            wire[f"{row.op} {'+'.join(parts(plan, row.axes))}"] += round(row.wire_bytes)
    return dict(wire)


IMPORTED = {
    "cuda": (
        *("torch.distributed._composable.replicate_with_fsdp", "torch.distributed.pipelining"),
        *("torch.nn.attention.flex_attention", "tests.cuda.worker"),
    ),
    "xla": ("planc.backends.xla.runtime.session", "optax", "jax.experimental.multihost_utils", "tests.xla.worker"),
}
"""Modules that programs and their start-up import."""


def load(stack: str) -> None:
    """Import what programs of a stack do, in one thread: the forks have it all."""
    if stack == "xla":
        from planc.backends.xla.runtime.start_up import prepare_environment

        os.environ["XLA_FLAGS"] = QUICKLY_COMPILED
        prepare_environment(max(DEVICES))
    for name in IMPORTED[stack]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is not collected is not copied


def trained(stack: str, path: Path, folder: Path) -> Row:
    """The row of a plan that is trained."""
    ranks, work = (cuda_case if stack == "cuda" else xla_case)(path, folder)
    return forked(ranks, work, folder, LATE_S)


def row_of(stack: str, path: Path, make: Callable[[str, Path, Path], Row]) -> Row:
    """The row that `make` gives of a plan; `failed` with the reason where it has none."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            row = make(stack, path, Path(folder))
        except Exception:
            row = {"failed": traceback.format_exc(limit=-6)}
    return {"name": path.stem, "seconds": time.monotonic() - began, "cpu_s": 0.0, **row}


def main(stack: str, files: list[str]) -> None:
    load(stack)
    make: Callable[[str, Path, Path], Row] = trained
    if files[0] == "--first-step":
        from tests.random_plans import first_step

        make, files = first_step.row_of, files[1:]
    for file in files:
        print("ROW", json.dumps(row_of(stack, Path(file), make)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
