"""Plans for the tests of the cuda backend, from their sentences."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from planc.ir.plan import Plan
from planc.strategies.build import build_file

HEAD = """plan {name}
model     {model}
batch     {batch}
cluster   {devices} x cpu_local
mesh      {mesh}
optimizer adamw
"""


def plan_of(
    name: str,
    mesh: str,
    *sentences: str,
    model: str = "llama_micro",
    batch: str = "16 x 24 tokens microbatch 2",
) -> Plan:
    """A plan on as many cpu devices as its mesh has; `sentences` is the layout."""
    devices = 1
    for axis in mesh.split(">"):
        devices *= int(axis.split()[1])
    text = HEAD.format(name=name, model=model, batch=batch, devices=devices, mesh=mesh)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.plan"
        path.write_text(text + "\n".join(sentences) + "\n")
        built = build_file(path)
    assert built.plan is not None, [d.message for d in built.diagnostics]
    return built.plan


def _case(name: str, mesh: str, *sentences: str, **changes: str) -> Callable[[], Plan]:
    return lambda: plan_of(name, mesh, *sentences, **changes)


TP = "shard heads, ffn, vocab over tp"
SP = "shard sequence over tp in residual"

CASES: dict[str, Callable[[], Plan]] = {
    case: _case(case, *layout)
    for case, layout in {
        "dp": ("dp 4", "use dp over dp"),
        "zero1": ("dp 4", "use zero1 over dp"),
        "zero2": ("dp 4", "use zero2 over dp"),
        "fsdp": ("fsdp 4", "use fsdp over fsdp"),
        "fsdp_microbatch": ("fsdp 4", "use fsdp over fsdp", "gather params per microbatch"),
        "fsdp_step": ("fsdp 4", "use fsdp over fsdp", "gather params per step"),
        "hsdp": ("replica 2 > fsdp 2", "use hsdp over replica, fsdp"),
        "tp": ("tp 4", "shard heads, ffn over tp"),
        "tp_vocab": ("tp 2", TP),
        "tp_sp": ("tp 2", TP, SP),
        "fsdp_tp_sp": ("fsdp 2 > tp 2", "use fsdp over fsdp", "use tp over tp", "use sp over tp"),
    }.items()
}
"""Layouts of four ranks, each to train as one process does."""
