"""Run by every rank of a launch: `nan.py STACK`. One rank's parameter stops being a number; then it is one again."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np

from planc.ir.target import Target

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from planc.checks import check_plan
from planc.ir.session import Settings
from planc.lowering import load_backend, lower_plan
from planc.trainer.run.launch import leave
from tests.cuda.cases import plan_of
from tests.seeded import batches, initial

POISONED = "layers.1.attention.wk.weight"


def main(stack: Target) -> None:
    runtime: Any = load_backend(stack).runtime()
    runtime.prepare_environment(2)
    plan = plan_of("nan", "fsdp 2", "use fsdp over fsdp")
    program = lower_plan(check_plan(plan), stack)
    session = runtime.start(program, Settings(skip_not_finite=True), initial)
    data = list(batches(plan, 2))
    session.step(*data[0], 1e-3)
    whole = {piece.name: np.zeros(piece.shape, np.float32) for piece in session.pieces()}
    whole |= {f"params.{name}": value.copy() for name, value in session.parameters()}

    def read(name: str, index: tuple[slice, ...]) -> Any:
        return whole[name][index]

    def poisoned(name: str, index: tuple[slice, ...]) -> Any:
        """The last element lies with the last rank, whichever dimension is divided."""
        value = whole[name].copy()
        if name == f"params.{POISONED}":
            value[-1, -1] = np.nan
        return value[index]

    session.restore(poisoned, 1)
    loss, norm = session.step(*data[1], 1e-3)
    where = session.not_finite()
    after = dict(session.parameters())
    same = all(np.array_equal(after[n], whole[f"params.{n}"]) for n in after if n != POISONED)
    steps = session.optimizer_steps
    session.restore(read, 1)
    fine, _ = session.step(*data[1], 1e-3)
    moved = not np.array_equal(dict(session.parameters())[POISONED], whole[f"params.{POISONED}"])
    if int(os.environ.get("RANK", "0")) == 0:
        row = {"loss": str(loss), "norm": str(norm), "where": where, "same": same, "steps": steps}
        print("ROW", json.dumps(row | {"fine": fine, "moved": moved, "then": session.optimizer_steps}), flush=True)
    if stack == "cuda":
        import torch.distributed as dist

        dist.barrier()


if __name__ == "__main__":
    main(cast(Target, sys.argv[1]))
    leave(0)
