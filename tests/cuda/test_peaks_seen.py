"""Peaks of small plans beside those that `planc audit --target cuda` saw: whose fullest moment is near the end of the
backward, or has one block."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.driver import check

PLAN = """plan seen
model {model}
batch {batch}
cluster {cluster}
mesh {mesh}
{uses}
compute {compute}
"""
LLAMA, MIXTRAL, QWEN = "llama3_8b(layers = {})", "mixtral_8x7b(layers = {})", "qwen3_1_7b(layers = {})"
SMALL = "llama3_8b(layers = {}, vocab = 4096)"
H100, H200, FSDP, STEP = (
    "1 x h100_node(4)",
    "1 x h200_node(2)",
    "use fsdp over d",
    "use fsdp over d\ngather params per step",
)
STORED = "shard batch over d\nstore params, grads, optimizer over d"
HSDP, TP = "use hsdp over r, d", "\nuse tp over tp"
SEEN = {
    "copies are gone": (LLAMA.format(4), "8 x 128", "1 x h100_node", "dp 8", "use ddp over dp", "fp32", 35.82),
    "copies stay": (LLAMA.format(4), "16 x 128", "1 x h100_node", "dp 8", "use ddp over dp", "fp32", 38.01),
    "one block": (LLAMA.format(1), "8 x 128", "1 x h100_node", "dp 8", "use fsdp over dp", "fp32", 7.57),
    "experts": (MIXTRAL.format(1), "2 x 16384", H200, "d 2", STORED, "bf16", 21.39),
    "experts again": (MIXTRAL.format(1), "2 x 16384", H200, "d 2", f"{STORED}\nrecompute blocks", "bf16", 21.22),
    "block reduced": (MIXTRAL.format(1), "8 x 512", H100, "d 4", "use zero2 over d\nrecompute blocks", "bf16", 13.71),
    "tied": (QWEN.format(3), "4 x 512", H100, "r 2 > d 2", HSDP, "fp32", 7.69),
    "cast": (LLAMA.format(1), "4 x 64", H100, "r 2 > d 2", HSDP, "bf16", 12.59),
    "not cast": (
        LLAMA.format(1),
        "2 x 512",
        H100,
        "d 2 > tp 2",
        "use ddp over d\nrecompute blocks" + TP,
        "bf16",
        11.82,
    ),
    "one bucket": (SMALL.format(2), "4 x 64", H100, "d 4", f"{STEP} bucket 2 layers", "fp32", 4.79),
    "one bucket, kept": (
        SMALL.format(2),
        "8 x 512 tokens microbatch 1",
        H100,
        "d 4",
        f"{STEP} bucket 2 layers",
        "fp32",
        6.34,
    ),
    "one bucket a microbatch": (
        SMALL.format(2),
        "8 x 64 tokens microbatch 1",
        H100,
        "d 4",
        "use fsdp over d\ngather params per microbatch bucket 2 layers",
        "fp32",
        5.23,
    ),
    "tied, bf16": (QWEN.format(1), "4 x 512", H100, "r 2 > d 2", HSDP, "bf16 reduce fp32", 4.62),
    "tied, two microbatches": (
        QWEN.format(1),
        "8 x 512 tokens microbatch 1",
        H100,
        "r 2 > d 2",
        f"{HSDP}\ngather params per microbatch",
        "bf16 reduce fp32",
        5.20,
    ),
    "tied, gathered once a step": (
        QWEN.format(1),
        "12 x 512 tokens microbatch 1",
        H100,
        "r 2 > d 2",
        f"{HSDP}\ngather params per step",
        "bf16 reduce fp32",
        5.29,
    ),
    "tied, added up": (
        QWEN.format(1),
        "12 x 512 tokens microbatch 1",
        H100,
        "d 4",
        "use zero1 over d",
        "bf16 reduce fp32",
        4.77,
    ),
    "head reduced": (
        LLAMA.format(1),
        "8 x 512 tokens microbatch 1",
        H100,
        "d 4",
        "use fsdp over d",
        "bf16 reduce fp32",
        8.64,
    ),
    "head reduced, copies stay": (
        LLAMA.format(1),
        "12 x 512 tokens microbatch 1",
        H100,
        "d 4",
        STEP,
        "bf16 reduce fp32",
        10.60,
    ),
    "head added up": (
        LLAMA.format(1),
        "12 x 512 tokens microbatch 1",
        H100,
        "d 4",
        "use zero1 over d",
        "bf16 reduce fp32",
        12.19,
    ),
    "loss in chunks": (
        LLAMA.format(4),
        "4 x 8192 tokens microbatch 1",
        H100,
        "d 4",
        f"{FSDP}\nrecompute blocks\nloss in 8 chunks",
        "bf16 reduce fp32",
        10.719,
    ),
    "embedding ahead": (
        "llama3_70b(layers = 4)",
        "8 x 8192 tokens microbatch 1",
        "8 x h100_node",
        "d 8 > tp 8",
        FSDP + TP + "\nuse sp over tp\nrecompute blocks",
        "bf16 reduce fp32",
        2.827,
    ),
    "experts apart": (
        MIXTRAL.format(4),
        "64 x 8192",
        "8 x h100_node",
        "d 8 > ep 8",
        "shard batch over d, ep\nstore params, grads, optimizer over d, ep\nuse ep over ep\nrecompute blocks",
        "bf16 reduce fp32",
        6.005,
    ),
    "adapters, few tokens": (
        LLAMA.format(3),
        "96 x 256",
        "12 x h100_node",
        "d 96",
        f"{FSDP}\nlora rank 8 on q_proj, v_proj\nrecompute blocks",
        "bf16 reduce fp32",
        2.442,
    ),
    "adapters beside experts": (
        MIXTRAL.format(3),
        "32 x 4096",
        "4 x h100_node",
        "d 32",
        f"{FSDP}\nlora rank 8 on q_proj, v_proj\nrecompute blocks",
        "bf16 reduce fp32",
        33.845,
    ),
    "gathered once": (LLAMA.format(3), "2 x 2048", H100, "d 2 > tp 2", STEP + TP, "fp32", 10.66),
}
"""Model, batch, machine, mesh, layouts, dtype, and the GiB that were seen."""


FURTHER = {"gathered once": 0.016}
"""Share of the peak that a layout is off by, if more than 1.5 %: one is predicted 1.5 % high, at the first blocks of a
step that begins without gradients."""


@pytest.mark.parametrize("what", SEEN)
def test_a_peak_is_as_it_was_seen(what: str, tmp_path: Path) -> None:
    model, batch, cluster, mesh, uses, compute, seen = SEEN[what]
    path = tmp_path / "seen.plan"
    batch = batch if "tokens" in batch else f"{batch} tokens"
    path.write_text(PLAN.format(model=model, batch=batch, cluster=cluster, mesh=mesh, uses=uses, compute=compute))
    memory = check(path, target="cuda").memory
    assert memory is not None and abs(memory.allocated_gib / seen - 1) < FURTHER.get(what, 0.015)
