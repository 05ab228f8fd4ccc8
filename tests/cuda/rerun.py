"""Run by every rank: trains each named layout twice in deterministic mode, and compares the bits."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from planc.backends.cuda.runtime.start_up import prepare_environment, start
from planc.checks import check_plan
from planc.ir.plan import Plan
from planc.ir.session import Settings
from planc.lowering import lower_plan
from planc.trainer.run.launch import leave
from tests.cuda.cases import case
from tests.cuda.worker import initial, train


def bits(plan: Plan, settings: Settings) -> dict[str, Any]:
    """Everything that a run has found, down to the last bit of each parameter."""
    session = start(lower_plan(check_plan(plan), "cuda"), settings, initial)
    assert "deterministic" in session.features
    found = train(session, plan)
    whole = {name: value.tobytes() for name, value in found["parameters"].items()}
    return {"losses": found["loss"], "norms": found["norm"], **whole}


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    prepare_environment(1)
    for name in names:
        plan, settings = case(name), Settings(deterministic=True)
        one, two = bits(plan, settings), bits(plan, settings)
        same = one == two and len(one) > 2
        print("SAME" if same else "DIFFERENT", name, dist.get_rank(), flush=True)
    dist.barrier()


if __name__ == "__main__":
    main(sys.argv[1:])
    leave(0)
