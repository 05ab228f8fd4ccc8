"""Run by every rank of a launch: `matrix.py STACK FOLDER`. Trains each layout of a stack, saves half-way, and
goes on under the same layout, under others, and from checkpoints of the other stack.

Rank 0 prints one line of JSON for each pair: the losses of the run that was not interrupted, and those after
the load. The two stacks run at the same time and wait for each other's checkpoints, which appear whole.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, cast

from planc.ir.target import Target

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from planc.checks import check_plan
from planc.ir.plan import Plan
from planc.ir.session import Session, Settings
from planc.lowering import load_backend, lower_plan
from planc.trainer.checkpoint import directory as folders
from planc.trainer.checkpoint.manifest import Manifest, Position
from planc.trainer.checkpoint.tensor_files import Reader
from planc.trainer.checkpoint.writer import Failed, Saver, Where
from planc.trainer.run.launch import leave
from tests.cuda.cases import plan_of
from tests.seeded import batches, initial
from tests.trainer.test_checkpoint import history
from tests.xla_flags import QUICKLY_COMPILED

MODEL = "llama_micro_tied"
"""The head uses the embedding's weight: one tensor of a checkpoint, of which a pipeline on cuda has two copies."""
SAVED, STEPS, LR = 2, 4, 1e-3
LONGEST_S = 400.0
"""Four times what a launch takes; less than the test waits."""
FSDP, TP, SP = "use fsdp over fsdp", "use tp over tp", "use sp over tp"

CUDA: dict[str, tuple[str, ...]] = {
    "fsdp": ("fsdp 4", FSDP),
    "zero1": ("dp 4", "use zero1 over dp"),
    "hsdp": ("replica 2 > fsdp 2", "use hsdp over replica, fsdp"),
    "fsdp_tp": ("fsdp 2 > tp 2", FSDP, TP, SP),
    "on_embed": ("fsdp 4", "shard batch over fsdp", "store params, grads, optimizer over fsdp on embed"),
    "pp_fsdp": ("pp 2 > fsdp 2", "split layers over pp as 1f1b", FSDP),
    "interleaved": ("pp 2 > tp 2", "split layers over pp as interleaved_1f1b(chunks = 2)", TP, SP),
    "single": ("dp 1", "use ddp over dp"),
}
XLA: dict[str, tuple[str, ...]] = {
    "fsdp_8": ("fsdp 8", FSDP),
    "zero1_tp": ("dp 2 > tp 2", "use zero1 over dp", TP, SP),
    "one_device": ("dp 1", "use ddp over dp"),
}
LAYOUTS: dict[Target, dict[str, tuple[str, ...]]] = {"cuda": CUDA, "xla": XLA}
"""By stack; `single` is the model undivided in one process."""

CROSS = {"cuda": ["fsdp_8", "zero1_tp"], "xla": ["fsdp_tp", "pp_fsdp"]}
"""The layouts of the other stack that each stack loads, under its first two own."""


def pairs(stack: Target) -> list[tuple[str, str]]:
    """(saved under, loaded under)."""
    here = list(LAYOUTS[stack])
    within = [(here[i - step], name) for i, name in enumerate(here) for step in (0, 1, 3)]
    return list(dict.fromkeys(within)) + [(a, b) for b in here[:2] for a in CROSS[stack]]


def layout(stack: Target, name: str) -> Plan:
    """The plan of a layout of a stack."""
    return plan_of(name, *LAYOUTS[stack][name], batch="16 x 24 tokens microbatch 2", model=MODEL)


def session_of(stack: Target, name: str) -> tuple[Plan, Session]:
    plan = layout(stack, name)
    program = lower_plan(check_plan(plan), stack)
    runtime = load_backend(stack).runtime()
    start = runtime.start_single if name == "single" else runtime.start
    return plan, start(program, Settings(), initial)


def train(session: Session, plan: Plan, first: int, last: int) -> list[float]:
    """The losses of steps `first` to `last`, both included."""
    taken = list(batches(plan, STEPS))[first - 1 : last]
    return [loss for tokens, targets in taken for loss in [session.step(tokens, targets, LR)[0]]]


def manifest(session: Session, plan: Plan, stack: Target) -> Manifest:
    return Manifest(
        step=SAVED, optimizer_steps=session.optimizer_steps, plan=plan.name, plan_sha256=plan.sha256,
        mesh=plan.mesh.sizes, target=stack, runtime=session.runtime, versions=session.versions,
        model=plan.model.name, course={}, data_sha256="", saved_at="",
        position=Position(step=SAVED, sequences=SAVED * plan.batch.sequences, tokens=SAVED * plan.batch.tokens),
    )  # fmt: skip


def save(session: Session, plan: Plan, stack: Target, folder: Path) -> None:
    """Save; one process alone also saves for itself."""
    saver = Saver(session, Where(folder, "matrix", keep=0, asynchronous=True, timeout_s=60))
    saver.save(manifest(session, plan, stack), history(SAVED))
    saver.finish()
    failed = [news for news in saver.news() if isinstance(news, Failed)]
    assert not failed, failed


def checkpoint(folder: Path) -> Path:
    """The checkpoint in a folder, once it is there."""
    limit = time.monotonic() + 120
    while not folders.stored_checkpoints(folder):
        assert time.monotonic() < limit, f"nothing was saved in {folder.name}"
        time.sleep(0.05)
    return folders.stored_checkpoints(folder)[-1].path


def uninterrupted(stack: Target, name: str, root: Path, rank: int) -> tuple[Plan, Any, list[float]]:
    """A layout trained to the end and saved half-way: its session, and its losses after the save."""
    plan, session = session_of(stack, name)
    train(session, plan, 1, SAVED)
    if name != "single" or rank == 0:  # every rank is a whole model here, and all train it
        save(session, plan, stack, root / name)
    losses = train(session, plan, SAVED + 1, STEPS)
    if rank == 0:
        (root / f"{name}.losses").write_text(json.dumps(losses))
    return plan, session, losses


def main(stack: Target, root: Path) -> None:
    faulthandler.dump_traceback_later(LONGEST_S, exit=True)  # a rank that waits for ever says where
    rank = int(os.environ.get("RANK", "0"))
    if stack == "xla":
        os.environ["XLA_FLAGS"] = QUICKLY_COMPILED
        load_backend(stack).runtime().prepare_environment(8)
    else:
        import torch

        torch.set_num_threads(1)
        torch.distributed.init_process_group("gloo")
    trained = {name: uninterrupted(stack, name, root, rank) for name in LAYOUTS[stack]}
    for saved_under, loaded_under in pairs(stack):
        plan, session, own = trained[loaded_under]
        path = checkpoint(root / saved_under)
        found = folders.verify(path) if rank == 0 else folders.read_manifest(path)
        session.restore(Reader(path, found.tensors), found.optimizer_steps)
        losses = train(session, plan, SAVED + 1, STEPS)
        if rank == 0:
            row = {"from": saved_under, "to": loaded_under, "own": own, "losses": losses}
            print("ROW", json.dumps(row), flush=True)
    if stack == "cuda":
        torch.distributed.barrier()


if __name__ == "__main__":
    main(cast(Target, sys.argv[1]), Path(sys.argv[2]))
    leave(0)
