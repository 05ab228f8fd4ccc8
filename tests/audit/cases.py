"""The layouts that are audited: published models on 64 to 16,384 devices."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from math import prod
from pathlib import Path

from planc.ir.plan import Plan
from planc.language.build import build_file

TP = "shard heads, ffn, vocab over tp"
NO_VOCAB = "shard heads, ffn over tp"
SP = "shard sequence over tp in residual"
FSDP = "use fsdp over fsdp"
HSDP = "use hsdp over replica, fsdp"
CP = "use cp over cp as {}"
EXPERTS = ("shard batch over fsdp, ep", "store params, grads, optimizer over fsdp, ep", "use ep over ep")
CAPACITY = "route experts as capacity(factor = 1.25)"
BF16 = "compute bf16 reduce fp32"
BLOCKS = "recompute blocks"
PER_STEP = "gather params per step"
DATA = ("replica", "dp", "fsdp", "ep")


@dataclass(frozen=True)
class Case:
    """One layout. `microbatches` of one sequence per data-parallel rank."""

    model: str
    mesh: str
    sentences: tuple[str, ...]
    microbatches: int = 1
    tokens: int = 8192
    compute: str = BF16


def _pipelined(schedule: str, mesh: str, *sentences: str, layers: int = 8) -> Case:
    split = f"split layers over pp as {schedule}"
    return Case(f"llama3_8b(layers = {layers})", mesh, (split, *sentences), microbatches=8)


CASES: dict[str, Case] = {
    "fsdp_64": Case("llama3_8b(layers = 8)", "fsdp 64", (FSDP,)),
    "fsdp_256_whole": Case("llama3_8b", "fsdp 256", (FSDP, BLOCKS)),
    "fsdp_step_1024": Case("llama3_8b(layers = 4)", "fsdp 1024", (FSDP, PER_STEP), microbatches=2),
    "fsdp_microbatch_512": Case(
        "llama3_8b(layers = 4)", "fsdp 512", (FSDP, "gather params per microbatch"), microbatches=2
    ),
    "fsdp_16384": Case("llama3_8b(layers = 2)", "fsdp 16384", (FSDP,)),
    "hsdp_64": Case("llama3_8b(layers = 4)", "replica 8 > fsdp 8", (HSDP,), microbatches=2),
    "hsdp_1024_recompute": Case("llama3_8b(layers = 8)", "replica 32 > fsdp 32", (HSDP, BLOCKS)),
    "zero1_64": Case("llama3_8b(layers = 4)", "dp 64", ("use zero1 over dp",), microbatches=2),
    "zero2_256": Case("llama3_8b(layers = 4)", "dp 256", ("use zero2 over dp",), microbatches=2),
    "tp_sp_64": Case("llama3_8b(layers = 4)", "fsdp 8 > tp 8", (FSDP, TP, SP)),
    "tp_sp_64_recompute": Case("llama3_8b(layers = 8)", "fsdp 8 > tp 8", (FSDP, TP, SP, BLOCKS)),
    "tp_sp_128_whole": Case("llama3_8b", "fsdp 16 > tp 8", (FSDP, TP, SP)),
    "tp_256": Case("llama3_8b(layers = 4)", "fsdp 32 > tp 8", (FSDP, TP)),
    "tp_sp_no_vocab_1024": Case("llama3_8b(layers = 4)", "fsdp 128 > tp 8", (FSDP, NO_VOCAB, SP)),
    "tp_sp_16384": Case("llama3_8b(layers = 2)", "fsdp 2048 > tp 8", (FSDP, TP, SP)),
    "hsdp_tp_256_core": Case(
        "llama3_8b(layers = 4)", "replica 4 > fsdp 8 > tp 8", (HSDP, TP, SP, "recompute attention.core")
    ),
    "tp_70b_512": Case("llama3_70b(layers = 4)", "fsdp 64 > tp 8", (FSDP, TP, SP, BLOCKS)),
    "tp_405b_16384": Case("llama3_405b(layers = 2)", "fsdp 2048 > tp 8", (FSDP, TP, SP)),
    "mistral_fsdp_64": Case("mistral_7b(layers = 4)", "fsdp 64", (FSDP,)),
    "cp_ring_64": Case("llama3_8b(layers = 4)", "fsdp 16 > cp 4", (FSDP, CP.format("ring")), tokens=32768),
    "cp_gather_128": Case("llama3_8b(layers = 4)", "fsdp 32 > cp 4", (FSDP, CP.format("all_gather")), tokens=32768),
    "ep_capacity_64": Case("mixtral_8x7b(layers = 4)", "fsdp 8 > ep 8", (*EXPERTS, CAPACITY)),
    "gpipe_64": _pipelined("gpipe", "pp 4 > fsdp 16", FSDP),
    "one_f_one_b_64": _pipelined("1f1b", "pp 4 > fsdp 4 > tp 4", FSDP, TP, SP),
    "uneven_1024": _pipelined("1f1b stages [embed + 1, 2, 3, 2 + head]", "pp 4 > fsdp 256", FSDP, BLOCKS),
    "interleaved_256_recompute": _pipelined(
        "interleaved_1f1b(chunks = 2)", "pp 4 > fsdp 8 > tp 8", FSDP, TP, SP, BLOCKS
    ),
    "looped_bfs_64": _pipelined("looped_bfs(chunks = 2)", "pp 4 > dp 16", "use zero1 over dp"),
    "interleaved_zero_bubble_64": _pipelined("interleaved_zero_bubble(chunks = 2)", "pp 4 > fsdp 16", FSDP, PER_STEP),
    "zbv_64": _pipelined("zbv", "pp 4 > fsdp 16", FSDP, PER_STEP),
    "dualpipev_128": _pipelined("dualpipev", "pp 4 > fsdp 8 > tp 4", FSDP, TP, SP, PER_STEP),
}


def plan_of(name: str) -> Plan:
    """The plan of a case, on H100 nodes."""
    return built(name, CASES[name])


def built(name: str, case: Case) -> Plan:
    """A plan called `name` on H100 nodes, from the sentences of `case`."""
    sizes = {axis.split()[0]: int(axis.split()[1]) for axis in case.mesh.split(">")}
    devices = prod(sizes.values())
    sequences = case.microbatches * prod(size for axis, size in sizes.items() if axis in DATA)
    head = [
        f"plan {name}",
        f"model {case.model}",
        f"batch {sequences} x {case.tokens} tokens microbatch 1",
        f"cluster {devices // 8} x h100_node",
        f"mesh {case.mesh}",
        case.compute,
        "optimizer adamw",
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.plan"
        path.write_text("\n".join((*head, *case.sentences)) + "\n")
        built = build_file(path, target="cuda")
    assert built.plan is not None, [d.message for d in built.diagnostics]
    return built.plan
