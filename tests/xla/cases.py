"""Plans for the tests of the xla backend, from their sentences."""

from __future__ import annotations

from typing import Any

from planc.ir.plan import Plan
from planc.ir.sharding import Sharded
from tests.plans import cpu_plan, propagated

BATCH = "16 x 24 tokens microbatch 2"
LONG = "4 x 512 tokens microbatch 2"
"""Rows enough for the kernel's vectors where ranks divide them."""
FSDP, TP, SP = "use fsdp over fsdp", "use tp over tp", "use sp over tp"
SPLASH = "attention.core as splash"
CP, RING = "use cp over cp", "use cp over cp as ring"
FSDP_TP = ("fsdp 2 > tp 2", FSDP, TP, SP)

UNEVEN: dict[str, tuple[str, ...]] = {
    "uneven_tp": ("fsdp 2 > tp 2", FSDP, TP),
    "uneven_tp_sp": ("dp 2 > tp 2", "use zero1 over dp", TP, SP, "recompute blocks"),
    "uneven_tied_gpipe": ("pp 2 > tp 2", "use pp over pp as gpipe", TP, SP),
    "uneven_four": ("tp 4", "shard heads, vocab over tp"),
    "uneven_fsdp": ("fsdp 6", FSDP, "offload optimizer to host"),
    "uneven_fsdp_tp": ("fsdp 3 > tp 2", FSDP, TP, "gather params per step"),
}
"""A vocabulary of 137 tokens, of which the last rank has fewer, and widths that three and six ranks do not divide."""

LAYOUTS: dict[str, tuple[str, ...]] = {
    # name: (mesh, sentence, ...)
    "dp": ("dp 4", "use ddp over dp"),
    "zero1": ("dp 4", "use zero1 over dp"),
    "zero2": ("dp 4", "use zero2 over dp"),
    "fsdp": ("fsdp 4", FSDP),
    "fsdp_microbatch": ("fsdp 4", FSDP, "gather params per microbatch"),
    "fsdp_step": ("fsdp 4", FSDP, "gather params per step"),
    "hsdp": ("replica 2 > fsdp 2", "use hsdp over replica, fsdp"),
    "two_axes": ("a 2 > b 2", "shard batch over a, b", "store params, grads, optimizer over a, b"),
    "tp": ("tp 2", TP),
    "tp_sp": ("tp 2", TP, SP),
    "dp_tp": ("dp 2 > tp 2", "use ddp over dp", TP),
    "zero1_tp_sp": ("dp 2 > tp 2", "use zero1 over dp", TP, SP),
    "zero2_tp_sp": ("dp 2 > tp 2", "use zero2 over dp", TP, SP),
    "fsdp_tp": ("fsdp 2 > tp 2", FSDP, TP),
    "fsdp_tp_sp": FSDP_TP,
    "fsdp4_tp_sp": ("fsdp 4 > tp 2", FSDP, TP, SP),
    "hsdp_tp_sp": ("replica 2 > fsdp 2 > tp 2", "use hsdp over replica, fsdp", TP, SP),
    "tp_outside": ("tp 2 > fsdp 2", FSDP, TP, SP),
    "whole_keys": ("tp 8", "shard heads over tp", "replicate kv_heads over tp"),
    "keys_of_two_ranks": ("a 4 > b 2", "shard heads over a, b", "replicate kv_heads over b"),
    "heads_only": ("fsdp 2 > tp 2", FSDP, "shard heads over tp", SP),
    "ffn_vocab_only": ("fsdp 2 > tp 2", FSDP, "shard ffn, vocab over tp"),
    "recompute_blocks": (*FSDP_TP, "recompute blocks"),
    "recompute_except": (*FSDP_TP, "recompute blocks except attention.core, ffn.gate"),
    "recompute_core": (*FSDP_TP, "recompute attention.core"),
    "recompute_every": (*FSDP_TP, "recompute blocks except ffn.gate every 3 layers"),
    "recompute_every_splash": ("fsdp 4", FSDP, SPLASH, "recompute attention.core every 2 layers"),
    "recompute_every_gpipe": ("pp 2 > fsdp 2", FSDP, "use pp over pp as gpipe", "recompute blocks every 2 layers"),
    "gpipe": ("pp 4", "use pp over pp as gpipe"),
    "gpipe_fsdp_tp_sp": ("pp 2 > fsdp 2 > tp 2", FSDP, TP, SP, "use pp over pp as gpipe"),
    "gpipe_step_zero": ("pp 2 > fsdp 2", FSDP, "gather params per step", "use pp over pp as gpipe"),
    "circular": ("pp 2 > dp 2", "use zero1 over dp", "split layers over pp as circular(chunks = 2)"),
    "circular_at_once": ("pp 2 > dp 4", "use ddp over dp", "split layers over pp as circular(chunks = 2)"),
    "circular_fsdp_tp": ("fsdp 2 > pp 2 > tp 2", FSDP, TP, "split layers over pp as circular(chunks = 2)"),
    "one_f_one_b": ("pp 4", "use pp over pp as 1f1b"),
    "one_f_one_b_fsdp_tp_sp": ("pp 2 > fsdp 2 > tp 2", FSDP, TP, SP, "use pp over pp as 1f1b"),
    "one_f_one_b_step_zero": ("pp 2 > fsdp 2", FSDP, "gather params per step", "use pp over pp as 1f1b"),
    "one_f_one_b_blocks": ("pp 4 > fsdp 2", FSDP, "use pp over pp as 1f1b", "recompute blocks"),
    "interleaved": ("pp 2 > dp 2", "use zero1 over dp", "split layers over pp as interleaved_1f1b(chunks = 2)"),
    "interleaved_fsdp_tp": ("fsdp 2 > pp 2 > tp 2", FSDP, TP, "split layers over pp as interleaved_1f1b(chunks = 2)"),
    "unequal_stages": ("pp 2 > fsdp 2", FSDP, "split layers over pp as 1f1b stages [embed + 3, 1 + head]"),
    "unequal_stages_interleaved": (
        *("pp 2 > tp 2", TP, SP, "recompute blocks"),
        "split layers over pp as interleaved_1f1b(chunks = 2) stages [embed, 2, 1, 1 + head]",
    ),
    "one_f_one_b_every": ("pp 2 > fsdp 2", FSDP, "use pp over pp as 1f1b", "recompute blocks every 2 layers"),
    "looped_bfs": ("pp 2 > fsdp 2", FSDP, "split layers over pp as looped_bfs(chunks = 2)"),
    "cp": ("cp 4", "use cp over cp"),
    "cp_in_order": ("dp 2 > cp 2", "use zero2 over dp", "shard sequence over cp"),
    "cp_stored": ("cp 2 > fsdp 2", "shard batch over fsdp", "store params, grads, optimizer over fsdp, cp", CP),
    "cp_tp_sp": ("cp 2 > tp 2", CP, TP, SP),
    "ring": ("cp 4", RING),
    "ring_in_order": (
        "cp 2 > dp 2",
        "use ddp over dp",
        "shard sequence over cp",
        "attention.core as ring(balance = none)",
    ),
    "ring_fsdp_tp_sp": ("fsdp 2 > cp 2 > tp 2", FSDP, RING, TP, SP),
    "ulysses": ("fsdp 2 > cp 2", FSDP, "use ulysses over cp", "recompute blocks"),
    "ulysses_tp": ("fsdp 2 > cp 2 > tp 2", FSDP, "use ulysses over cp", "shard heads, ffn over tp"),
    "ulysses_splash": ("fsdp 2 > cp 2", FSDP, "use ulysses over cp", SPLASH, "recompute blocks except attention.core"),
    "ulysses_ring": (
        *("fsdp 2 > cp 2 > u 2", FSDP, "shard sequence over cp, u", "shard heads over u in attention"),
        "attention.core as ring",
    ),
    "ulysses_gathered": (
        "cp 2 > u 2",
        "shard sequence over cp, u",
        "shard heads over u in attention",
        "recompute blocks",
    ),
    "ulysses_gpipe": ("pp 2 > cp 2 > tp 2", "use pp over pp as gpipe", "use ulysses over cp", TP),
    "ulysses_keys_whole": ("cp 8", "use ulysses over cp", "replicate kv_heads over cp"),
    "ffn_rows": (*FSDP_TP[:3], "shard sequence over tp in ffn"),
    "projected_heads": ("dp 2 > tp 2", "use ddp over dp", "shard heads over tp in projection"),
    "embed_at_rest": (*FSDP_TP[:3], "shard embed over tp in residual"),
    "cp_gpipe": ("pp 2 > fsdp 2 > cp 2", "use pp over pp as gpipe", FSDP, CP, "recompute blocks"),
    "splash_one_f_one_b": ("pp 2 > fsdp 2 > tp 2", FSDP, TP, SP, SPLASH, "use pp over pp as 1f1b"),
    "splash_circular": (
        *("pp 2 > fsdp 2 > tp 2", FSDP, TP, SPLASH, "recompute blocks"),
        "split layers over pp as circular(chunks = 2)",
    ),
    "ring_one_f_one_b": ("pp 2 > fsdp 2 > cp 2", FSDP, RING, "use pp over pp as 1f1b"),
    "splash": (*FSDP_TP, SPLASH, "recompute blocks"),
    "splash_hsdp": ("replica 2 > fsdp 2 > tp 2", "use hsdp over replica, fsdp", TP, "attention.core as flash"),
    "splash_kept": (*FSDP_TP, SPLASH, "recompute blocks except attention.core, ffn.gate"),
    "splash_core": ("fsdp 4", FSDP, SPLASH, "recompute attention.core"),
    "splash_whole_keys": ("tp 8", "shard heads over tp", "replicate kv_heads over tp", SPLASH),
    "splash_keys_of_two_ranks": ("a 4 > b 2", "shard heads over a, b", "replicate kv_heads over b", SPLASH),
    "fsdp_tp_sp_qwen2": FSDP_TP,
    "one_f_one_b_qwen2": ("pp 2 > fsdp 2 > tp 2", FSDP, TP, SP, "use pp over pp as 1f1b"),
    "ring_qwen2": ("fsdp 2 > cp 2 > tp 2", FSDP, RING, TP, SP),
    "ulysses_qwen2": ("fsdp 2 > cp 2 > tp 2", FSDP, "use ulysses over cp", "shard heads, ffn over tp"),
    "splash_mistral": (*FSDP_TP, SPLASH, "recompute blocks"),
    "long_splash_cp": ("cp 4", CP, SPLASH, "recompute blocks"),
    "long_splash_cp_in_order": (
        *(
            "dp 2 > cp 2",
            "use zero1 over dp",
            "shard sequence over cp",
            SPLASH,
            "attention.core as all_gather(balance = none)",
        ),
    ),
    "long_splash_cp_mistral": ("fsdp 2 > cp 2 > tp 2", FSDP, CP, TP, SP, SPLASH, "recompute attention.core"),
    "long_splash_ring": ("cp 2 > tp 2", RING, TP, SPLASH, "recompute blocks except attention.core"),
    "long_splash_ring_in_order": (
        *("dp 2 > cp 2", "use ddp over dp", "shard sequence over cp", "attention.core as ring(balance = none)", SPLASH),
    ),
    "long_splash_ulysses_ring": (
        *(
            "cp 2 > u 2",
            "shard sequence over cp, u",
            "shard heads over u in attention",
            "attention.core as ring",
            SPLASH,
        ),
    ),
    "unfused": (*FSDP_TP, "attention.core as unfused"),
    "offload_state": ("fsdp 4", FSDP, "offload params, optimizer to host"),
    "offload_optimizer_tp": (*FSDP_TP, "offload optimizer to host", "recompute blocks"),
    "offload_params_zero1": ("dp 4", "use zero1 over dp", "offload params to host"),
    "offload_hidden": (*FSDP_TP, "recompute blocks", "offload hidden to host"),
    "offload_some": (*FSDP_TP, "recompute blocks except ffn.gate, attention.core", "offload ffn.gate, hidden to host"),
    "offload_kernel": (
        "fsdp 4",
        FSDP,
        SPLASH,
        "recompute blocks except attention.core",
        "offload attention.mixed to host",
    ),
    "offload_step": ("fsdp 4", FSDP, "gather params per step", "offload params, optimizer to host"),
    "on_embed": ("fsdp 4", "shard batch over fsdp", "store params, grads, optimizer over fsdp on embed"),
    "tied_fsdp_tp_sp": FSDP_TP,
    "tied_zero1": ("dp 4", "use zero1 over dp"),
    "tied_gpipe": ("pp 2 > fsdp 2", FSDP, "use pp over pp as gpipe"),
    "tied_circular_tp": ("pp 2 > tp 2", TP, SP, "split layers over pp as circular(chunks = 2)"),
    **UNEVEN,
    "chunks_tp_sp": (*FSDP_TP, "recompute blocks", "loss in 8 chunks"),
    "chunks_hsdp": ("replica 2 > fsdp 2", "use hsdp over replica, fsdp", "loss in 4 chunks"),
    "chunks_cp": ("fsdp 2 > cp 2", FSDP, CP, "loss in 4 chunks"),
    "chunks_step": ("fsdp 4", FSDP, "gather params per step", "loss in 3 chunks"),
    "tied_chunks": (*FSDP_TP, "loss in 4 chunks"),
    "override": (
        *FSDP_TP,
        "override layers.*.attention.wo = replicated",
        "override layers.*.feed_forward.w1 = replicated",
    ),
    "override_on_three_axes": (
        *("fsdp 2 > cp 2 > tp 2", FSDP, CP, TP, SP),
        "override layers.*.feed_forward.w3 = replicated",
    ),
}
"""Layouts of up to eight devices, each to train as one device does."""

NARROW: dict[str, tuple[str, ...]] = {
    "bf16": (*FSDP_TP, "compute bf16 reduce fp32", "recompute blocks"),
    "bf16_gpipe": ("pp 2 > fsdp 2 > tp 2", FSDP, TP, SP, "use pp over pp as gpipe", "compute bf16 reduce fp32"),
    "bf16_chunks": (*FSDP_TP, "compute bf16 reduce fp32", "loss in 4 chunks"),
    "bf16_ring": ("fsdp 2 > cp 2", FSDP, RING, "compute bf16 reduce fp32"),
    "bf16_step": ("fsdp 4", FSDP, "gather params per step", "compute bf16 reduce fp32"),
}
"""Layouts in bf16: near the one device in fp32, no more."""

ALL_BF16 = "store params, grads, optimizer as bf16"
NARROW_STATE: dict[str, tuple[str, ...]] = {
    "state_bf16": ("fsdp 4", "shard batch over fsdp", f"{ALL_BF16} over fsdp"),
    "state_bf16_tp": ("fsdp 2 > tp 2", "shard batch over fsdp", TP, SP, f"{ALL_BF16} over fsdp", "recompute blocks"),
    "moments_bf16": ("fsdp 4", FSDP, "store optimizer as bf16"),
    "params_bf16_zero1": (
        *("dp 4", "shard batch over dp", "store params as bf16", "store optimizer over dp"),
        "compute bf16 reduce fp32",
    ),
    "state_bf16_step": ("fsdp 4", "shard batch over fsdp", f"{ALL_BF16} over fsdp", "gather params per step"),
    "state_bf16_gpipe": (
        *("pp 2 > fsdp 2", "use pp over pp as gpipe", "shard batch over fsdp", f"{ALL_BF16} over fsdp"),
        "recompute blocks",
    ),
}
"""State in bf16, beside one device that rounds it as often."""

BF16 = "compute bf16 reduce fp32"
FLOAT8: dict[str, tuple[str, ...]] = {
    "float8_rowwise": ("fsdp 4", FSDP, BF16, "quantize ffn, attention as float8(rowwise) except layers 0"),
    "float8_rowwise_tp": (*FSDP_TP, BF16, "quantize ffn, attention, head as float8(rowwise)", "recompute blocks"),
    "float8_tensorwise": ("dp 4", "use zero1 over dp", BF16, "quantize ffn, head as float8(tensorwise)"),
    "float8_tensorwise_tp": (
        *(*FSDP_TP, BF16, "quantize ffn as float8 except layers 1..2", "recompute blocks"),
        "quantize attention as float8(rowwise) except layers 0",
    ),
    "float8_one_f_one_b": ("pp 2 > fsdp 2", FSDP, "use pp over pp as 1f1b", BF16, "quantize ffn as float8(tensorwise)"),
    "float8_ring": ("fsdp 2 > cp 2", FSDP, RING, BF16, "quantize attention as float8(rowwise)", "recompute blocks"),
    "int8_tp": (*FSDP_TP, BF16, "quantize ffn, attention as int8", "recompute blocks"),
    "int8_fp32_step": ("fsdp 4", FSDP, "gather params per step", "quantize ffn as int8"),
}
"""Matmuls in float8 and int8, beside one device that rounds to them and back, and multiplies wide."""

QUICK = {"one_f_one_b"}
"""Trained by `make test`."""
IN_CI = {
    *("hsdp", "fsdp_tp_sp", "circular", "cp_tp_sp", "ulysses_ring", "offload_state", "ring_in_order"),
    "chunks_tp_sp",
    *("bf16_gpipe", "int8_tp"),
}
"""Trained by CI too, with each mechanism among them; `make all` and `make parity` train all."""


def plan_of(name: str, mesh: str, *sentences: str, batch: str = BATCH, **more: Any) -> Plan:
    """A plan of `tests.plans.cpu_plan`, with two sequences a microbatch; `tied`, `mistral` or `qwen2` in its name is
    of its model."""
    model = "llama_micro_tied" if name.startswith("tied") else "llama_micro"
    model = next((f"{m}_micro" for m in ("mistral", "qwen2") if name.endswith(m)), model)
    if name in UNEVEN:
        model = model.replace("llama_micro", "llama_micro_tied" if "tied" in name else "llama_micro") + "(vocab = 137)"
        batch = "12 x 24 tokens microbatch 1" if "fsdp" in name else batch
    batch = LONG if name.startswith("long") and batch == BATCH else batch
    return cpu_plan(name, mesh, *sentences, batch=batch, **{"model": model, **more})


def sharded(name: str) -> Sharded:
    """A layout of the table, propagated."""
    return propagated(plan_of(name, *LAYOUTS[name]))
