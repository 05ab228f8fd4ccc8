"""The plans that the TPU compiler audits: published models on 16 to 4,096 chips of five generations."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from math import prod
from pathlib import Path

from planc.ir.plan import Plan
from planc.language.build import build_file

HEAD = """plan {name}
model {model}
batch {sequences} x {tokens} tokens microbatch 1
cluster {cluster}
mesh {mesh}
compute bf16 reduce fp32
recompute blocks{every}
optimizer adamw
"""
FSDP, TP, SP = "use fsdp over fsdp", "use tp over tp", "use sp over tp"
EXPERTS = (
    "shard batch over fsdp, ep",
    "store params, grads, optimizer over fsdp, ep",
    "use ep over ep",
    "route experts as capacity(factor = 1.25)",
)
PRESET_EXPERTS = (
    "shard batch over fsdp, ep",
    "store params, grads, optimizer over fsdp",
    "use ep over ep",
    "route experts as capacity(factor = 1.25)",
)
DROPLESS = PRESET_EXPERTS[:-1]
ROWS = ("shard batch over fsdp", "store params, grads, optimizer over fsdp, cp")
"""Data and state beside ranks that divide the rows of a sequence."""
PLAIN = "attention.core as unfused"
DATA = ("replica", "fsdp", "ep")


@dataclass(frozen=True)
class Case:
    """One plan. `microbatches` of one sequence per data-parallel rank."""

    model: str
    cluster: str
    mesh: str
    sentences: tuple[str, ...]
    tokens: int = 8192
    microbatches: int = 1
    plain: bool = True
    """Attention without a kernel; otherwise the target's own, which is splash attention."""
    every: int = 1
    """Blocks that are run again: one of so many."""

    @property
    def sizes(self) -> dict[str, int]:
        return {axis.split()[0]: int(axis.split()[1]) for axis in self.mesh.split(">")}


CASES: dict[str, Case] = {
    "llama3_8b_v5p_16": Case("llama3_8b", "tpu_v5p(2x2x4)", "fsdp 4 > tp 4", (FSDP, TP)),
    "llama3_8b_v5p_64": Case("llama3_8b", "tpu_v5p(4x4x4)", "fsdp 16 > tp 4", (FSDP, TP, SP), microbatches=2),
    "llama3_8b_v5p_64_fsdp": Case("llama3_8b", "tpu_v5p(4x4x4)", "fsdp 64", (FSDP,), tokens=4096),
    "llama3_8b_v5p_128_hsdp": Case(
        "llama3_8b", "tpu_v5p(4x4x8)", "replica 2 > fsdp 16 > tp 4", ("use hsdp over replica, fsdp", TP)
    ),
    "llama3_8b_v4_64": Case("llama3_8b", "tpu_v4(4x4x4)", "fsdp 16 > tp 4", (FSDP, TP), tokens=4096),
    "llama3_8b_v5e_256": Case("llama3_8b", "tpu_v5e(16x16)", "fsdp 64 > tp 4", (FSDP, TP), tokens=4096),
    "llama3_8b_v5e_256_fsdp": Case("llama3_8b", "tpu_v5e(16x16)", "fsdp 256", (FSDP,)),
    "llama3_8b_v6e_256": Case("llama3_8b", "tpu_v6e(16x16)", "fsdp 64 > tp 4", (FSDP, TP, SP)),
    "llama3_8b_7x_16": Case("llama3_8b", "tpu_7x(2x2x4)", "fsdp 8 > tp 4", (FSDP, TP)),
    "mixtral_8x7b_v5p_64": Case("mixtral_8x7b", "tpu_v5p(4x4x4)", "fsdp 16 > ep 4", EXPERTS, tokens=4096),
    "llama3_70b_v5p_256": Case("llama3_70b", "tpu_v5p(4x8x8)", "fsdp 64 > tp 4", (FSDP, TP, SP), microbatches=4),
    "llama3_70b_v5p_512": Case("llama3_70b", "tpu_v5p(8x8x8)", "fsdp 64 > tp 8", (FSDP, TP)),
    "llama3_70b_v6e_256": Case("llama3_70b", "tpu_v6e(16x16)", "fsdp 32 > tp 8", (FSDP, TP), tokens=4096),
    "llama3_70b_7x_128": Case("llama3_70b", "tpu_7x(4x4x8)", "fsdp 32 > tp 8", (FSDP, TP)),
    "llama3_70b_v5p_4096": Case("llama3_70b", "tpu_v5p(16x16x16)", "fsdp 512 > tp 8", (FSDP, TP)),
    "llama3_8b_v5e_64": Case(
        "llama3_8b", "tpu_v5e(8x8)", "fsdp 16 > tp 4", (FSDP, TP, SP), tokens=4096, microbatches=2
    ),
    "llama3_8b_7x_64_hsdp": Case(
        "llama3_8b", "tpu_7x(4x4x4)", "replica 2 > fsdp 16 > tp 4", ("use hsdp over replica, fsdp", TP)
    ),
    "mixtral_8x7b_v6e_64": Case("mixtral_8x7b", "tpu_v6e(8x8)", "fsdp 8 > ep 8", EXPERTS, tokens=2048),
    "llama3_70b_v5p_1024": Case("llama3_70b", "tpu_v5p(8x8x16)", "fsdp 128 > tp 8", (FSDP, TP, SP)),
    "llama3_8b_v5p_2_layers": Case(
        "llama3_8b(layers = 2)", "tpu_v5p(4x4x4)", "fsdp 64", (FSDP,), microbatches=2, plain=False
    ),
    "llama3_8b_v5p_preset": Case("llama3_8b", "tpu_v5p(4x4x4)", "fsdp 64", (FSDP,), microbatches=2, plain=False),
    "qwen3_8b_v5p_2_layers": Case(
        "qwen3_8b(layers = 2)", "tpu_v5p(4x4x4)", "fsdp 64", (FSDP,), microbatches=2, plain=False
    ),
    "llama3_70b_v5p_2_layers": Case(
        "llama3_70b(layers = 2)", "tpu_v5p(4x8x8)", "fsdp 64 > tp 4", (FSDP, TP, SP), microbatches=4, plain=False
    ),
    "llama3_70b_v5p_preset": Case(
        "llama3_70b", "tpu_v5p(4x8x8)", "fsdp 64 > tp 4", (FSDP, TP, SP), microbatches=4, plain=False
    ),
    "llama3_405b_v5p_preset": Case(
        "llama3_405b", "tpu_v5p(16x16x8)", "fsdp 256 > tp 8", (FSDP, TP, SP), microbatches=2, plain=False
    ),
    "mixtral_8x7b_v5p_2_layers": Case(
        "mixtral_8x7b(layers = 2)",
        "tpu_v5p(4x4x8)",
        "fsdp 16 > ep 8",
        PRESET_EXPERTS,
        tokens=4096,
        microbatches=4,
        plain=False,
    ),
    "deepseek_v3_v5p_4_layers": Case(
        "deepseek_v3(layers = 4)",
        "tpu_v5p(8x8x16)",
        "fsdp 64 > ep 16",
        PRESET_EXPERTS,
        tokens=4096,
        microbatches=4,
        plain=False,
    ),
    "mixtral_8x7b_v5p_dropless": Case(
        "mixtral_8x7b(layers = 2)",
        "tpu_v5p(4x4x8)",
        "fsdp 16 > ep 8",
        DROPLESS,
        tokens=4096,
        microbatches=4,
        plain=False,
    ),
    "llama3_8b_v6e_2_layers": Case(
        "llama3_8b(layers = 2)", "tpu_v6e(16x16)", "fsdp 64 > tp 4", (FSDP, TP, SP), plain=False
    ),
    "llama3_8b_v5p_offload_state": Case(
        "llama3_8b(layers = 8)",
        "tpu_v5p(2x2x4)",
        "fsdp 16",
        (FSDP, "offload params, optimizer to host"),
        microbatches=2,
        plain=False,
    ),
    "qwen3_8b_v6e_offload_hidden": Case(
        "qwen3_8b(layers = 2)", "tpu_v6e(4x4)", "fsdp 8 > tp 2", (FSDP, TP, SP, "offload hidden to host"), plain=False
    ),
    "llama3_8b_7x_offload_optimizer": Case(
        "llama3_8b(layers = 8)", "tpu_7x(2x2x4)", "fsdp 8 > tp 4", (FSDP, TP, "offload optimizer to host"), plain=False
    ),
    "llama3_8b_v5p_gathered_keys": Case(
        "llama3_8b(layers = 2)",
        "tpu_v5p(4x4x4)",
        "fsdp 16 > cp 4",
        (*ROWS, "use cp over cp"),
        tokens=16384,
        plain=False,
    ),
    "llama3_8b_v5p_ring": Case(
        "llama3_8b(layers = 2)",
        "tpu_v5p(4x4x4)",
        "fsdp 16 > cp 4",
        (*ROWS, "use cp over cp as ring"),
        tokens=16384,
        plain=False,
    ),
    "qwen3_8b_v5e_ring": Case(
        "qwen3_8b(layers = 2)", "tpu_v5e(8x8)", "fsdp 16 > cp 4", (*ROWS, "use cp over cp as ring"), plain=False
    ),
    "llama3_8b_v5p_ulysses": Case(
        "llama3_8b(layers = 2)", "tpu_v5p(4x4x4)", "fsdp 16 > cp 4", (*ROWS, "use ulysses over cp"), plain=False
    ),
    "llama3_70b_v6e_ulysses_tp": Case(
        "llama3_70b(layers = 2)",
        "tpu_v6e(8x8)",
        "fsdp 8 > cp 2 > tp 4",
        (*ROWS, "use ulysses over cp", "shard heads, ffn over tp"),
        plain=False,
    ),
    "llama3_8b_v4_state_bf16": Case(
        "llama3_8b(layers = 2)",
        "tpu_v4(4x4x4)",
        "fsdp 64",
        ("shard batch over fsdp", "store params, grads, optimizer as bf16 over fsdp"),
        microbatches=2,
        plain=False,
    ),
    "llama3_8b_v5p_every_2_layers": Case(
        "llama3_8b(layers = 4)", "tpu_v5p(4x4x4)", "fsdp 64", (FSDP,), every=2, plain=False
    ),
    "llama3_8b_v5p_uneven_vocab": Case(
        "llama3_8b(layers = 2, vocab = 128257)", "tpu_v5p(2x4x4)", "fsdp 8 > tp 4", (FSDP, TP), plain=False
    ),
}
"""`llama3_8b_v5e_256_fsdp` should not fit: plain attention holds the scores of all heads."""
PRESETS = tuple(name for name, case in CASES.items() if not case.plain)
"""Presets, some cut to a few layers, and those with newer sentences: their attention runs its kernel."""
NEWER = PRESETS[PRESETS.index("llama3_8b_v5p_offload_state") :]
"""Plans of the sentences that this target learnt last: offload, rings and gathered keys with the kernel, Ulysses, state
in bf16, layers run again by twos, vocabularies with a rest."""
LATER = ("llama3_8b_v5e_64", "llama3_8b_7x_64_hsdp", "mixtral_8x7b_v6e_64", "llama3_70b_v5p_1024")
"""Chosen and predicted after the last change of a rule, before they were compiled."""


def plan_of(name: str, *, plain: bool = False) -> Plan:
    """The plan of a case, with `plain` attention where that is asked for."""
    case = CASES[name]
    sequences = case.microbatches * prod(size for axis, size in case.sizes.items() if axis in DATA)
    head = HEAD.format(
        name=name,
        model=case.model,
        sequences=sequences,
        tokens=case.tokens,
        cluster=case.cluster,
        mesh=case.mesh,
        every="" if case.every == 1 else f" every {case.every} layers",
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.plan"
        path.write_text(head + "\n".join((*case.sentences, *([PLAIN] if case.plain or plain else []))) + "\n")
        built = build_file(path, target="xla")
    assert built.plan is not None, [d.message for d in built.diagnostics]
    return built.plan
