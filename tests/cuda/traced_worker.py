"""Run by every rank of a launch: modules under plans that were read from their code, each beside itself undivided.

Rank 0 prints one line of JSON a case: the largest relative differences of three steps' losses, and of weights after.
"""

from __future__ import annotations

import copy
import json
import sys
import tempfile
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor import DTensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import planc
from planc.backends.cuda.runtime.traced.bind import logits_of
from planc.trainer.run.launch import leave
from tests.cuda import foreign_layers, ways_of_writing
from tests.cuda.families import config_of, model_on
from tests.cuda.test_traced import Strange
from tests.cuda.ways_of_writing import WAYS
from tests.cuda.whole_code import WHOLE_CODE

SEQUENCES, TOKENS, VOCAB, STEPS = 8, 24, 136, 3
TP = ("fsdp 2 > tp 2", "use fsdp over fsdp", "use tp over tp")
SP = (*TP, "use sp over tp")
HEADS = (*TP[:2], "shard heads, vocab over tp")
EP = (
    "fsdp 2 > ep 2",
    "shard batch over fsdp, ep",
    "store params, grads, optimizer over fsdp, ep",
    "use ep over ep",
)
HALVES = (*TP[:2], "shard heads, ffn over tp")
KEYS = (*TP, "replicate kv_heads over tp")
FSDP = ("fsdp 4", "use fsdp over fsdp")
LAYOUTS = {"keys": KEYS, "halves": HALVES, "ep": EP, "tp": TP, "heads": HEADS, "sp": SP, "fsdp": FSDP}


FOREIGN = {"a": 112, "b": 96, "c": 136}
"""Modules of someone who has not read how they are read, with the width of their vocabulary."""


def plan_in(folder: Path, model: Any, layout: str) -> Path:
    """A plan of the layout, with the model's op graph saved beside it."""
    planc.model_of(model).write(folder / "own.model.json")
    path = folder / "own.plan"
    mesh, *uses = LAYOUTS[layout]
    head = ["plan own", 'model from code "own"', f"batch {SEQUENCES} x {TOKENS} tokens microbatch 2"]
    path.write_text("\n".join([*head, "cluster 4 x cpu_local", f"mesh {mesh}", "compute fp32", *uses]) + "\n")
    return path


def built(family: str) -> tuple[Any, int]:
    """The whole module of a family of transformers, or one of its author's own, and the width of its vocabulary."""
    if family == "own":
        return Strange(width=64, heads=8), 50
    if family in WAYS | WHOLE_CODE:
        return (WAYS | WHOLE_CODE)[family](), ways_of_writing.VOCAB
    if family in FOREIGN:
        return import_module(f"tests.cuda.foreign.{family}").build(), FOREIGN[family]
    if family == "c_layers":
        return foreign_layers.build(), VOCAB
    return model_on("cpu", config_of(family)), VOCAB


def compared(family: str, layout: str) -> dict[str, Any]:
    """Three steps of the divided model beside the whole one's, on the same batches."""
    torch.manual_seed(0)
    whole, vocab = built(family)
    whole.eval()
    more = {"use_cache": False} if hasattr(whole, "config") else {}
    model = copy.deepcopy(whole)
    with tempfile.TemporaryDirectory() as folder:
        program = planc.lower(plan_in(Path(folder), whole, layout))
    divided = program.parallelize(model)
    emitted = program.load()
    mesh = emitted.build_mesh("cpu")
    index, count = emitted.data_rank(mesh)
    rows = slice(index * SEQUENCES // count, (index + 1) * SEQUENCES // count)
    step = emitted.build_step(divided, mesh)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (whole, divided)]
    apart = []
    for _ in range(STEPS):
        tokens = torch.randint(0, vocab, (SEQUENCES, TOKENS + 1))
        inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        for optimizer in optimizers:
            optimizer.zero_grad()
        expected = F.cross_entropy(logits_of(whole(inputs, **more)).flatten(0, 1), labels.flatten())
        expected.backward()
        loss = step(inputs[rows], labels[rows])
        apart.append(abs(loss.item() - expected.item()) / expected.item())
        here = sum(_squares(p) for p in divided.parameters())
        there = sum(_squares(p) for p in whole.parameters())
        apart.append(abs(here / there - 1))
        for optimizer in optimizers:
            optimizer.step()
    return {"apart": max(apart), "loss": max(apart[::2])}


def _squares(parameter: Any) -> float:
    """The sum of a gradient's squares."""
    grad = parameter.grad
    if grad is None:
        return 0.0
    whole = grad.full_tensor() if isinstance(grad, DTensor) else grad
    return float(whole.double().square().sum())


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for case in sys.argv[1:]:
        family, layout = case.split(":")
        try:
            row = compared(family, layout)
        except Exception as error:
            row = {"error": f"{type(error).__name__}: {error}"[:400], "trace": traceback.format_exc()[-900:]}
        if dist.get_rank() == 0:
            print("ROW", json.dumps({"name": family, "layout": layout, **row}), flush=True)
        dist.barrier()
    dist.destroy_process_group()
    leave(0)


if __name__ == "__main__":
    main()
