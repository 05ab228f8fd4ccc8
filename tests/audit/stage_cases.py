"""The layouts whose peaks are compared stage by stage, pipelines most of all. They were chosen, and committed,
before any of them was traced.

The first fourteen are models and meshes that a trial of planc drew; the others go over the schedules, what is
recomputed, experts, tensor and context parallelism, and dtypes.
"""

from __future__ import annotations

from planc.ir.plan import Plan

from .cases import BLOCKS, CAPACITY, CP, EXPERTS, FSDP, HSDP, PER_STEP, SP, TP, Case, built

HEADS = "shard heads, vocab over tp"
"""Tensor parallelism of a model whose feed-forward layers are experts."""
EP = "use ep over ep"
EFSDP = "store params, grads, optimizer over efsdp for experts"
EXCEPT_CORE = "recompute blocks except attention.core"
ZERO2 = "use zero2 over fsdp"


def _split(schedule: str) -> str:
    return f"split layers over pp as {schedule}"


def _experts(efsdp: int, ep: int) -> tuple[str, ...]:
    """Experts over ranks that store other state together."""
    return (FSDP, f"view efsdp {efsdp} > ep {ep} of fsdp for experts", EP, EFSDP)


DRAWN: dict[str, Case] = {
    "hsdp_blocks_64": Case("llama3_8b(layers = 3)", "replica 2 > fsdp 32", (HSDP, BLOCKS), 2),
    "hsdp_ring_tp_128": Case(
        "llama3_8b(layers = 6)", "replica 4 > fsdp 2 > cp 2 > tp 8", (HSDP, TP, SP, CP.format("ring")), 2
    ),
    "hsdp_tp_except_core_96": Case(
        "llama3_70b(layers = 4)", "replica 2 > fsdp 6 > tp 8", (HSDP, TP, SP, EXCEPT_CORE), 2
    ),
    "hsdp_tp_blocks_512": Case("llama3_70b(layers = 3)", "replica 4 > fsdp 16 > tp 8", (HSDP, TP, SP, BLOCKS), 2),
    "hsdp_tp_1024": Case("qwen3_32b(layers = 3)", "replica 2 > fsdp 64 > tp 8", (HSDP, TP, SP), 2),
    "gpipe_hsdp_tp_96": Case(
        "qwen3_8b(layers = 4)", "pp 3 > replica 2 > fsdp 4 > tp 4", (_split("gpipe"), HSDP, TP, SP), 8
    ),
    "one_f_one_b_hsdp_96": Case("qwen3_8b(layers = 4)", "pp 3 > replica 2 > fsdp 16", (_split("1f1b"), HSDP), 6, 4096),
    "gpipe_hsdp_tp_blocks_192": Case(
        "mistral_7b(layers = 5)", "pp 3 > replica 2 > fsdp 16 > tp 2", (_split("gpipe"), HSDP, TP, SP, BLOCKS), 6
    ),
    "zbv_zero2_ring_tp_96": Case(
        "llama3_8b(layers = 6)",
        "pp 3 > fsdp 8 > cp 2 > tp 2",
        (_split("zbv"), ZERO2, TP, SP, CP.format("ring")),
        8,
    ),
    "gpipe_experts_tp_96": Case(
        "mixtral_8x7b(layers = 4)", "pp 3 > fsdp 16 > tp 2", (_split("gpipe"), *_experts(4, 4), HEADS, SP), 4, 4096
    ),
    "gpipe_experts_384": Case(
        "mixtral_8x7b(layers = 3)", "pp 3 > fsdp 128", (_split("gpipe"), *_experts(32, 4)), 4, 4096
    ),
    "one_f_one_b_experts_128": Case(
        "qwen3_30b_a3b(layers = 4)", "pp 2 > fsdp 64", (_split("1f1b"), *_experts(8, 8)), 4, 4096
    ),
    "one_f_one_b_experts_tp_1024": Case(
        "qwen3_30b_a3b(layers = 4)", "pp 2 > fsdp 256 > tp 2", (_split("1f1b"), *_experts(64, 4), HEADS, SP), 4, 4096
    ),
    "one_f_one_b_latent_experts_96": Case(
        "deepseek_v2_lite(layers = 3)", "pp 3 > fsdp 32", (_split("1f1b"), *_experts(8, 4), BLOCKS), 6, 4096
    ),
}
"""Batches and tokens were chosen here: the trial did not say them."""

OTHERS: dict[str, Case] = {
    "gpipe_zero1_64": Case("llama3_8b(layers = 8)", "pp 4 > dp 16", (_split("gpipe"), "use zero1 over dp"), 6),
    "gpipe_tp_core_64": Case(
        "llama3_8b(layers = 8)",
        "pp 2 > fsdp 8 > tp 4",
        (_split("gpipe"), FSDP, TP, SP, "recompute attention.core"),
        4,
    ),
    "one_f_one_b_tp_blocks_256": Case(
        "llama3_70b(layers = 8)", "pp 4 > fsdp 8 > tp 8", (_split("1f1b"), FSDP, TP, SP, BLOCKS), 8
    ),
    "one_f_one_b_tp_core_512": Case(
        "llama3_70b(layers = 8)",
        "pp 4 > fsdp 16 > tp 8",
        (
            _split("1f1b"),
            TP,
            SP,
            "shard batch over fsdp",
            "store params, optimizer over fsdp",
            PER_STEP,
            "recompute attention.core",
        ),
        8,
    ),
    "one_f_one_b_every_other_64": Case(
        "mistral_7b(layers = 8)", "pp 2 > fsdp 32", (_split("1f1b"), FSDP, "recompute blocks every 2 layers"), 6
    ),
    "one_f_one_b_gather_64": Case(
        "llama3_8b(layers = 8)",
        "pp 2 > fsdp 8 > cp 4",
        (_split("1f1b"), FSDP, CP.format("all_gather"), BLOCKS),
        4,
        32768,
    ),
    "one_f_one_b_ring_64": Case(
        "llama3_8b(layers = 4)", "pp 2 > fsdp 8 > cp 4", (_split("1f1b"), FSDP, CP.format("ring")), 4, 16384
    ),
    "interleaved_tp_64": Case(
        "llama3_8b(layers = 8)", "pp 2 > fsdp 16 > tp 2", (_split("interleaved_1f1b(chunks = 2)"), FSDP, TP, SP), 4
    ),
    "interleaved_405b_512": Case(
        "llama3_405b(layers = 6)",
        "pp 4 > fsdp 16 > tp 8",
        (
            _split("interleaved_1f1b(chunks = 2) stages [embed, 6 x 1 layers, head]"),
            FSDP,
            TP,
            SP,
            PER_STEP,
            BLOCKS,
        ),
        8,
    ),
    "looped_except_core_64": Case(
        "qwen3_8b(layers = 8)",
        "pp 2 > fsdp 32",
        (_split("looped_bfs(chunks = 2)"), FSDP, PER_STEP, EXCEPT_CORE),
        4,
    ),
    "zero_bubble_zero2_tp_64": Case(
        "llama3_8b(layers = 8)",
        "pp 2 > fsdp 16 > tp 2",
        (_split("interleaved_zero_bubble(chunks = 2)"), ZERO2, TP, SP),
        4,
    ),
    "zbv_tp_128": Case("qwen3_8b(layers = 8)", "pp 4 > fsdp 8 > tp 4", (_split("zbv"), FSDP, TP, SP, PER_STEP), 8),
    "dualpipev_experts_32": Case(
        "qwen3_30b_a3b(layers = 4)", "pp 2 > fsdp 16", (_split("dualpipev"), *_experts(4, 4), PER_STEP), 4, 4096
    ),
    "one_f_one_b_capacity_128": Case(
        "mixtral_8x7b(layers = 4)", "pp 2 > fsdp 8 > ep 8", (_split("1f1b"), *EXPERTS, CAPACITY), 4, 4096
    ),
    "interleaved_latent_experts_16": Case(
        "deepseek_v2_lite(layers = 5)",
        "pp 2 > ep 8",
        (
            _split("interleaved_1f1b(chunks = 2) stages [embed + 1, 1, 1, 2 + head]"),
            "use zero1 over ep",
            EP,
        ),
        4,
        4096,
    ),
    "one_f_one_b_fp32_64": Case(
        "llama3_8b(layers = 4)", "pp 2 > replica 2 > fsdp 16", (_split("1f1b"), HSDP), 4, 4096, compute="compute fp32"
    ),
}
"""Schedules, recompute, experts, context, dtypes."""

STAGE_CASES = {**DRAWN, **OTHERS}


def stage_plan(name: str) -> Plan:
    """The plan of a named layout, on H100 nodes."""
    return built(name, STAGE_CASES[name])
