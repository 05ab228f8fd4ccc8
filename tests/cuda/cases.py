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

PP = "split layers over pp as {}"

CASES: dict[str, Callable[[], Plan]] = {
    case: _case(case, *layout)
    for case, layout in {
        # State over the data ranks.
        "dp": ("dp 4", "use dp over dp"),
        "zero1": ("dp 4", "use zero1 over dp"),
        "zero2": ("dp 4", "use zero2 over dp"),
        "fsdp": ("fsdp 4", "use fsdp over fsdp"),
        "fsdp_microbatch": ("fsdp 4", "use fsdp over fsdp", "gather params per microbatch"),
        "fsdp_step": ("fsdp 4", "use fsdp over fsdp", "gather params per step"),
        "hsdp": ("replica 2 > fsdp 2", "use hsdp over replica, fsdp"),
        "fsdp_two_axes": ("a 2 > b 2", "shard batch over a, b", "store params, grads, optimizer over a, b"),
        # Tensor parallelism.
        "dp_tp": ("dp 2 > tp 2", "use dp over dp", TP),
        "dp_tp_no_vocab": ("dp 2 > tp 2", "use dp over dp", "shard heads, ffn over tp"),
        "zero1_tp_sp_no_vocab": ("dp 2 > tp 2", "use zero1 over dp", "shard heads, ffn over tp", SP),
        "zero2_tp_sp": ("dp 2 > tp 2", "use zero2 over dp", TP, SP),
        "fsdp_tp_sp": ("fsdp 2 > tp 2", "use fsdp over fsdp", "use tp over tp", "use sp over tp"),
        "fsdp_heads_only": ("fsdp 2 > tp 2", "use fsdp over fsdp", "shard heads over tp", SP),
        "fsdp_ffn_only": ("fsdp 2 > tp 2", "use fsdp over fsdp", "shard ffn, vocab over tp", SP),
        "tp_outside": ("tp 2 > fsdp 2", "use fsdp over fsdp", TP, SP),
        # Recompute.
        "recompute_blocks": ("fsdp 2 > tp 2", "use fsdp over fsdp", TP, SP, "recompute blocks"),
        "recompute_core": ("fsdp 2 > tp 2", "use fsdp over fsdp", TP, SP, "recompute attention.core"),
        # Overrides.
        "override": (
            "fsdp 2 > tp 2",
            "use fsdp over fsdp",
            TP,
            SP,
            "override layers.*.attention.wo = replicated",
            "override layers.*.feed_forward.w1 = replicated",
        ),
        # Pipelines.
        "gpipe": ("pp 4", PP.format("gpipe")),
        "one_f_one_b": ("pp 2 > fsdp 2", PP.format("1f1b"), "use fsdp over fsdp"),
        "interleaved": ("pp 2 > tp 2", PP.format("interleaved_1f1b(chunks = 2)"), TP, SP),
        "looped_bfs": ("pp 2 > dp 2", PP.format("looped_bfs(chunks = 2)"), "use zero1 over dp"),
        "interleaved_zb": ("pp 2 > dp 2", PP.format("interleaved_zero_bubble(chunks = 2)"), "use dp over dp"),
        "zbv": ("pp 2 > fsdp 2", PP.format("zbv_zero_bubble(chunks = 2)"), "use fsdp over fsdp"),
        "dualpipe_v": ("pp 2 > tp 2", PP.format("dualpipe_v(chunks = 2)"), TP),
    }.items()
}
"""Layouts of four ranks, each to train as one process does."""
