"""One rank of a comparison with one process: `python -m tests.lab.measure.parity_worker TASK.json`.

Each plan takes some steps over all ranks, and as one process on rank 0, from the same weights on the same tokens.
Rank 0 tells both courses of losses, how far the gradients are apart, and the collectives that were not as predicted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.audit.observe import Observer, meshes_of
from planc.backends.cuda.audit.predict import predicted
from planc.backends.cuda.runtime.session import TorchSession
from planc.backends.cuda.runtime.start_up import prepare_environment, start, start_single
from planc.checks import check_plan
from planc.ir.audit import AuditRow, compared, differences
from planc.ir.plan import Plan
from planc.ir.program import Program
from planc.ir.session import Settings
from planc.language.build import build_file
from planc.lowering import lower_plan
from planc.trainer.measure.worker import tell
from planc.trainer.run import launch
from planc.trainer.run.initial_weights import initial
from tests.lab.measure.joining import join

LR = 2e-4
OBSERVED_STEP = 2
"""The step whose collectives are counted: the first one connects."""
Gradients = dict[str, "np.ndarray[Any, np.dtype[np.float32]]"]


def batches(plan: Plan, steps: int) -> Iterator[tuple[Any, Any]]:
    """Seeded global batches of tokens and the tokens that follow them, [sequences, tokens] each."""
    stream = np.random.default_rng(7)
    shape = (plan.batch.sequences, plan.batch.sequence_tokens + 1)
    for _ in range(steps):
        tokens = stream.integers(0, plan.model.sizes["vocab"], shape, dtype=np.int32)
        yield tokens[:, :-1], tokens[:, 1:]


def trained(session: TorchSession, plan: Plan, steps: int, observer: Observer | None = None) -> list[float]:
    """The losses (nats) of so many steps; `observer` watches the second one."""
    losses = []
    for number, (tokens, targets) in enumerate(batches(plan, steps), start=1):
        with observer if observer is not None and number == OBSERVED_STEP else nullcontext():
            losses.append(session.step(tokens, targets, LR)[0])
    return losses


def gradient_gap(found: Gradients, expected: Gradients) -> tuple[float, str]:
    """The largest difference of a gradient's element, as a share of that gradient's largest element; and the
    parameter."""
    gaps = {
        name: float(np.abs(found[name] - e).max() / max(float(np.abs(e).max()), 1e-30)) for name, e in expected.items()
    }
    worst = max(gaps, key=gaps.__getitem__)
    return gaps[worst], worst


def audited(program: Program, session: TorchSession, observer: Observer) -> list[list[Any]]:
    """For each rank: its rows of collectives that are not as predicted, in words, then the number of those that are."""
    sharded = program.sharded
    roles = AxisRoles(sharded)
    stage = session.mesh.get_local_rank(roles.name("pipeline")) if roles.pipeline else 0
    sizes = {f.name: f.size for f in (*roles.experts.factors, *roles.factors)}
    rows: tuple[AuditRow, ...] = compared(stage, predicted(sharded, stage, dist.get_rank()), observer.totals(sizes))
    here = [[*differences(rows), *sorted(observer.unparsed)], sum(row.observed.count for row in rows if row.agrees)]
    every: list[list[Any]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(every, here)
    return every


def compare(path: Path, steps: int) -> None:
    """Train the plan at `path` both ways; rank 0 tells the differences."""
    plan = build_file(path, target="cuda").plan
    assert plan is not None, f"{path} was read before it was sent here"
    program = lower_plan(check_plan(plan), "cuda", version="installed")
    session = start(program, Settings(), initial(plan.model, 0))
    observer = Observer(*meshes_of(program.load(), session.mesh))
    losses = trained(session, plan, steps, observer)
    gradients = dict(session.gradients())
    ranks = audited(program, session, observer)
    if dist.get_rank() == 0:
        single = start_single(program, Settings(), initial(plan.model, 0))
        reference = trained(single, plan, steps)
        gap, where = gradient_gap(gradients, dict(single.gradients()))
        found = {"losses": losses, "reference": reference, "gradient": gap, "where": where}
        wrong = [f"rank {rank}: {text}" for rank, (texts, _) in enumerate(ranks) for text in texts]
        calls = sum(count for _, count in ranks)
        tell({"plan": plan.name, **found, "calls_as_predicted": calls, "calls_otherwise": wrong})
    dist.barrier()


def main(task: dict[str, Any]) -> None:
    """`task`: `plans` (paths), `steps`, `shared` (all ranks on one device)."""
    prepare_environment(1)
    join(shared=task["shared"])
    for path in task["plans"]:
        compare(Path(path), task["steps"])


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
    launch.leave(0)
