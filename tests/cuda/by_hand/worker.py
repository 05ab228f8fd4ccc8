"""Run by every rank of a launch: each program by hand beside the emitted one, from the same weights.

`worker.py` prints, for each layout, both lists of collectives of the second step and both losses.
`worker.py PAIRS` prints the seconds of so many steps of each, in turn.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.debug._comm_mode import _CommModeModuleTracker

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from planc.backends.cuda.audit.observe import Observer
from planc.backends.cuda.models.llama import build
from planc.checks import check_plan
from planc.ir.plan import Plan
from planc.lowering import lower_plan
from planc.trainer.run.launch import leave
from tests.cuda.cases import FSDP, PP, SP, TP, plan_of

LAYOUTS: dict[str, tuple[str, ...]] = {
    "fsdp": ("fsdp 4", FSDP),
    "tensor": ("fsdp 2 > tp 2", FSDP, TP, SP),
    "pipeline": ("pp 2 > fsdp 2", PP.format("1f1b"), FSDP, "gather params per step"),
}
MICROBATCH = {"fsdp": 1, "tensor": 4, "pipeline": 4}
SHORT = {"pipeline": 5}
"""Times as many pairs of steps that take an eighth as long: their ratios vary more."""
Step = Callable[[], float]


def plan(name: str) -> Plan:
    mesh, *sentences = LAYOUTS[name]
    return plan_of(f"beside_{name}", mesh, *sentences, batch=f"16 x 24 tokens microbatch {MICROBATCH[name]}")


def model_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    return build(plan(name).model)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    tokens = torch.randint(0, 134, (16, 25))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def optimizer_of(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=1e-3, fused=True)


def by_hand(name: str) -> tuple[Step, Any]:
    """A step of the program that was written by hand, and its mesh."""
    program = import_module(f"tests.cuda.by_hand.{name}")
    mesh = program.build_mesh()
    module = program.parallelize(model_of(name), mesh)
    index, count = program.rows(mesh)
    tokens, labels = (t.chunk(count)[index] for t in batch())
    held = (program.build_schedule(module, mesh), module) if name == "pipeline" else (module,)
    optimizer = optimizer_of(module)
    return lambda: program.train_step(*held, mesh, optimizer, tokens, labels), mesh


def emitted(name: str) -> tuple[Step, Any]:
    """The same of the program that planc writes."""
    program = lower_plan(check_plan(plan(name)), "cuda").load()
    mesh = program.build_mesh("cpu")
    divided = program.parallelize(model_of(name), mesh)
    index, count = program.data_rank(mesh)
    tokens, labels = (t.chunk(count)[index] for t in batch())
    run = program.build_step(divided, mesh)
    optimizer = optimizer_of(divided[0] if isinstance(divided, list) else divided)

    def step() -> float:
        optimizer.zero_grad()
        loss = run(tokens, labels)
        program.clip_grad_norm(divided, mesh, 1.0)
        optimizer.step()
        return loss.item()

    return step, mesh


def observed(make: Callable[[str], tuple[Step, Any]], name: str) -> dict[str, Any]:
    """The loss of each of three steps; the collectives of the second, and the third's by torch's own count."""
    step, mesh = make(name)
    observer, counted = Observer(mesh), CommDebugMode()
    losses = [step()]
    with observer:
        losses.append(step())
    # torch's own count follows modules through one forward only, and a step has several
    with patch.object(_CommModeModuleTracker, "_fw_set_module_hook", lambda *_: None), counted:
        losses.append(step())
    return {
        "losses": losses,
        "list": [[op, _ranks(mesh, dim), dtype, payload] for (op, dim, dtype), payload in observer.log],
        "unparsed": sorted(observer.unparsed),
        "counted": counted.get_total_counts(),
        "by_op": {str(op): n for op, n in counted.get_comm_counts().items()},
    }


def _ranks(mesh: Any, dimension: str) -> list[int]:
    """A dimension as ranks: the two programs call theirs differently."""
    return dist.get_process_group_ranks(mesh.get_group(dimension))


def seconds(name: str, pairs: int) -> list[tuple[float, float]]:
    """(emitted, by hand) of so many steps in turn, the first of each pair alternating; two rounds do not count."""
    steps = [emitted(name)[0], by_hand(name)[0]]
    found = []
    for number in range(pairs + 2):
        took = [0.0, 0.0]
        for which in (0, 1) if number % 2 else (1, 0):
            dist.barrier()
            began = time.perf_counter()
            steps[which]()
            dist.barrier()
            took[which] = time.perf_counter() - began
        found.append((took[0], took[1]))
    return found[2:]


def main(pairs: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name in LAYOUTS:
        if pairs:
            row: dict[str, Any] = {"seconds": seconds(name, pairs * SHORT.get(name, 1))}
        else:
            every: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(every, {"emitted": observed(emitted, name), "by_hand": observed(by_hand, name)})
            row = {"ranks": every}
        if dist.get_rank() == 0:
            print("ROW", json.dumps({"name": name, **row}), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    leave(0)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
