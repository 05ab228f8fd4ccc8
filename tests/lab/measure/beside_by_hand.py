"""One rank of a comparison: `python -m tests.lab.measure.beside_by_hand TASK.json`.

The emitted program of a plan and another one take steps in turn, the first of each pair alternating: that of `by_hand`,
from the same weights, or that of torchtitan. Rank 0 tells the seconds of both, and their losses.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from planc.backends.cuda.models import family
from planc.backends.cuda.runtime.shards import fill
from planc.backends.cuda.runtime.start_up import prepare_environment
from planc.checks import check_plan
from planc.ir.plan import Plan
from planc.language.build import build_file
from planc.lowering import lower_plan
from planc.trainer.measure.worker import tell
from planc.trainer.run import launch
from planc.trainer.run.initial_weights import initial
from tests.lab.measure import by_hand, titan
from tests.lab.measure.joining import join

WARM_UP = 3
"""Pairs that do not count: they compile, connect and fill the allocator."""
LR = 1e-4
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
Step = Callable[[], float]


def emitted_step(plan: Plan, device: torch.device, tokens: torch.Tensor, labels: torch.Tensor) -> Step:
    """A step of the program that planc emits for `plan`, on this rank's rows of a global batch."""
    program = lower_plan(check_plan(plan), "cuda", version="installed").load()
    mesh = program.build_mesh(device.type)
    model = _filled(program.parallelize(_on_meta(plan), mesh), plan, device)
    index, count = program.data_rank(mesh)
    mine, following = (t.chunk(count)[index] for t in (tokens, labels))
    optimizer = _optimizer(model)
    run = program.build_step(model, mesh)

    def step() -> float:
        optimizer.zero_grad()
        loss = run(mine, following)
        program.clip_grad_norm(model, mesh, 1.0)
        optimizer.step()
        return float(loss)

    return step


def hand_written_step(plan: Plan, device: torch.device, tokens: torch.Tensor, labels: torch.Tensor) -> Step:
    """The same of the program that is written by hand."""
    mesh = by_hand.data_mesh(device)
    compute = DTYPES[plan.precision.compute]
    divided = by_hand.parallelize(_on_meta(plan), mesh, compiled=bool(plan.compiles), compute=compute)
    model = _filled(divided, plan, device)
    mine, following = (t.chunk(dist.get_world_size())[dist.get_rank()] for t in (tokens, labels))
    optimizer = _optimizer(model)
    has_flash = plan.attention is not None and plan.attention.method == "flash"

    def step() -> float:
        with by_hand.flash(has_flash):
            return by_hand.train_step(model, mesh, optimizer, mine, following, plan.batch.microbatch_sequences)

    return step


def torchtitan_step(plan: Plan, device: torch.device, tokens: torch.Tensor, labels: torch.Tensor) -> Step:
    """The same of torchtitan's own model and layout, from weights of its own."""
    model, dims, optimizers = titan.model_of(plan, device)
    mine, following = (t.chunk(dist.get_world_size())[dist.get_rank()] for t in (tokens, labels))
    compute, microbatch = DTYPES[plan.precision.compute], plan.batch.microbatch_sequences
    return lambda: titan.train_step(model, dims, optimizers, compute, mine, following, microbatch)


OTHERS = {"by_hand": hand_written_step, "torchtitan": torchtitan_step}


def _on_meta(plan: Plan) -> Any:
    with torch.device("meta"):
        return family(plan.model.family).build(plan.model)


def _filled(model: Any, plan: Plan, device: torch.device) -> Any:
    model.to_empty(device=device)
    names = {name: name.replace("._orig_mod", "") for name, _ in model.named_parameters()}
    first = initial(plan.model, 0)
    fill([model], lambda name, shape: first(names.get(name, name), shape))
    return model


def _optimizer(model: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), fused=True)


def pair_of_seconds(steps: tuple[Step, Step], number: int) -> list[tuple[float, float]]:
    """Seconds and loss of each of two `steps`, taken in turn: the second one first when `number` is even."""
    found = [(0.0, 0.0), (0.0, 0.0)]
    for which in (0, 1) if number % 2 else (1, 0):
        dist.barrier()
        began = time.perf_counter()
        loss = steps[which]()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        dist.barrier()
        found[which] = time.perf_counter() - began, loss
    return found


def main(task: dict[str, Any]) -> None:
    """`task`: `plan` (path), `pairs`, `other` (one of OTHERS)."""
    prepare_environment(1)
    device = join(shared=False)
    plan = build_file(Path(task["plan"]), target="cuda").plan
    assert plan is not None, "it was read before it was sent here"
    torch.manual_seed(0)
    shape = (plan.batch.sequences, plan.batch.sequence_tokens + 1)
    tokens = torch.randint(0, plan.model.sizes["vocab"], shape).to(device)
    rows = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    steps = emitted_step(plan, device, *rows), OTHERS[task["other"]](plan, device, *rows)
    for number in range(task["pairs"] + WARM_UP):
        (emitted_s, emitted), (by_hand_s, hand) = pair_of_seconds(steps, number)
        if dist.get_rank() == 0:
            counts = number >= WARM_UP
            tell({"seconds": [emitted_s, by_hand_s], "losses": [emitted, hand], "counts": counts})
    dist.barrier()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
    launch.leave(0)
