"""Plans for the tests of the cuda backend, from their sentences."""

from __future__ import annotations

from typing import Any

from planc.ir.plan import Plan
from tests.plans import cpu_plan

BATCH = "16 x 24 tokens microbatch 4"


def plan_of(name: str, mesh: str, *sentences: str, batch: str = BATCH, **more: Any) -> Plan:
    """A plan of `tests.plans.cpu_plan`, with four sequences a microbatch."""
    return cpu_plan(name, mesh, *sentences, batch=batch, **more)


TP = "shard heads, ffn, vocab over tp"
NO_VOCAB = "shard heads, ffn over tp"
SP = "shard sequence over tp in residual"

PP = "split layers over pp as {}"
FSDP = "use fsdp over fsdp"
MATMULS = "attention.q, attention.k, attention.v, attention.out, ffn.gate, ffn.up, ffn.down"
"""Every matmul of a block of Llama."""
STEP = "gather params per step"
ZERO2 = "use zero2 over dp"
BF16 = "compute bf16 reduce fp32"

STATE: dict[str, tuple[str, ...]] = {
    "dp": ("dp 4", "use ddp over dp"),
    "zero1": ("dp 4", "use zero1 over dp"),
    "zero2": ("dp 4", "use zero2 over dp"),
    "fsdp": ("fsdp 4", FSDP),
    "fsdp_microbatch": ("fsdp 4", FSDP, "gather params per microbatch"),
    "fsdp_step": ("fsdp 4", FSDP, "gather params per step"),
    "params_and_optimizer": ("dp 4", "use zero1 over dp", "store params over dp"),
    "hsdp": ("replica 2 > fsdp 2", "use hsdp over replica, fsdp"),
    "hsdp_step": ("replica 2 > fsdp 2", "use hsdp over replica, fsdp", "gather params per step"),
    "two_axes": ("a 2 > b 2", "shard batch over a, b", "store params, grads, optimizer over a, b"),
    "on_embed": ("fsdp 4", "shard batch over fsdp", "store params, grads, optimizer over fsdp on embed"),
    "fsdp_bf16": ("fsdp 4", FSDP, BF16),
    "buckets": ("fsdp 4", FSDP, "gather params per pass bucket 2 layers"),
    "buckets_step": ("replica 2 > fsdp 2", "use hsdp over replica, fsdp", f"{STEP} bucket 4 layers"),
    "prefetch": ("fsdp 4", FSDP, "gather params per pass prefetch 2 layers", "recompute blocks"),
    "buckets_ahead": ("fsdp 2 > tp 2", FSDP, TP, SP, "gather params per pass bucket 2 layers prefetch 2 layers"),
    "buckets_1f1b": ("pp 2 > fsdp 2", PP.format("1f1b"), FSDP, "gather params per pass bucket 2 layers"),
}
"""How state is kept over the data ranks."""

TENSOR: dict[str, tuple[str, ...]] = {
    "dp_tp": ("dp 2 > tp 2", "use ddp over dp", TP),
    "dp_tp_no_vocab": ("dp 2 > tp 2", "use ddp over dp", "shard heads, ffn over tp"),
    "zero1_tp_sp_no_vocab": ("dp 2 > tp 2", "use zero1 over dp", "shard heads, ffn over tp", SP),
    "zero2_tp_sp": ("dp 2 > tp 2", "use zero2 over dp", TP, SP),
    "fsdp_tp_sp": ("fsdp 2 > tp 2", FSDP, "use tp over tp", "use sp over tp"),
    "head_whole": ("fsdp 2 > tp 2", FSDP, TP, SP, "override output = replicated"),
    "heads_only": ("fsdp 2 > tp 2", FSDP, "shard heads over tp", SP),
    "ffn_and_vocab": ("fsdp 2 > tp 2", FSDP, "shard ffn, vocab over tp", SP),
    "recompute_blocks": ("fsdp 2 > tp 2", FSDP, TP, SP, "recompute blocks"),
    "recompute_core": ("fsdp 2 > tp 2", FSDP, TP, SP, "recompute attention.core"),
    "override": (
        "fsdp 2 > tp 2",
        FSDP,
        TP,
        SP,
        "override layers.*.attention.wo = replicated",
        "override layers.*.feed_forward.w1 = replicated",
    ),
    "eight_microbatches": ("tp 4", "shard heads over tp", SP),
    "two_parts": ("a 2 > tp 2", "shard heads over a", "shard ffn, vocab over tp"),
    "two_parts_recomputed": ("tp 2 > a 2", "shard heads over a", "shard ffn over tp", "recompute blocks"),
    "part_of_axes": ("a 2 > tp 2", "shard heads over a, tp", "shard ffn, vocab over tp"),
    "tp_two_axes": ("a 2 > b 2", "shard heads over a, b", "shard sequence over a, b in residual"),
}
"""Tensor parallelism, with and without a divided sequence, and recompute under it."""

LORA = "lora rank 4 alpha 8 on heads"
LORA_ALL = "lora rank 3 on attention, ffn"

FINE_TUNED: dict[str, tuple[str, ...]] = {
    "lora_dp": ("dp 4", "use ddp over dp", LORA),
    "lora_zero2": ("dp 4", "use zero2 over dp", LORA_ALL),
    "lora_fsdp": ("fsdp 4", FSDP, LORA),
    "lora_fsdp_step": ("fsdp 4", FSDP, "gather params per step", LORA_ALL),
    "lora_hsdp": ("replica 2 > fsdp 2", "use hsdp over replica, fsdp", "lora rank 3 on ffn", "recompute blocks"),
    "lora_fsdp_tp_sp": ("fsdp 2 > tp 2", FSDP, TP, SP, LORA_ALL),
    "lora_fsdp_tp_recompute": ("fsdp 2 > tp 2", FSDP, TP, SP, LORA_ALL, "recompute blocks"),
    "lora_fsdp_tp": ("fsdp 2 > tp 2", FSDP, TP, LORA_ALL, "recompute attention.core"),
    "lora_tp_alone": ("tp 4", "shard heads over tp", SP, LORA),
    "lora_one_matrix": ("fsdp 2 > tp 2", FSDP, NO_VOCAB, SP, "lora rank 4 on attention.v", "recompute blocks"),
    "lora_norms_too": ("fsdp 2 > tp 2", FSDP, TP, SP, LORA, "freeze model except norms, head"),
    "lora_tied": ("fsdp 4", FSDP, LORA_ALL),
    "lora_tied_tp_sp": ("fsdp 2 > tp 2", FSDP, TP, SP, LORA_ALL, "recompute blocks"),
    "lora_qwen2_micro": ("fsdp 4", FSDP, LORA_ALL),
    "lora_qwen2_micro_tp": ("fsdp 2 > tp 2", FSDP, TP, LORA_ALL),
    "lora_qwen2_micro_tp_sp": ("fsdp 2 > tp 2", FSDP, TP, SP, LORA_ALL, "recompute blocks"),
    "tied_head_alone": ("fsdp 2 > tp 2", FSDP, TP, SP, "freeze model except head"),
    "tied_frozen_head": ("fsdp 2 > tp 2", FSDP, TP, SP, "freeze head"),
    "frozen_embedding": ("fsdp 4", FSDP, "freeze embedding"),
    "frozen_embedding_tp_sp": ("fsdp 2 > tp 2", FSDP, TP, SP, "freeze embedding, norms", "recompute blocks"),
    "frozen_attention": ("replica 2 > fsdp 2", "use hsdp over replica, fsdp", "freeze attention"),
    "frozen_head": ("fsdp 2 > tp 2", FSDP, TP, "freeze head, final.norm, ffn.down"),
    "head_alone": ("fsdp 2 > tp 2", FSDP, TP, SP, "freeze model except head"),
    "embedding_alone": ("fsdp 4", FSDP, "freeze model except embedding", "recompute blocks"),
}
"""Fine-tuning: parts that are frozen, and low-rank updates beside frozen weights."""

PIPELINE: dict[str, tuple[str, ...]] = {
    "gpipe": ("pp 4", PP.format("gpipe")),
    "1f1b": ("pp 2 > fsdp 2", PP.format("1f1b"), FSDP),
    "1f1b_recompute": ("pp 2 > fsdp 2", PP.format("1f1b"), FSDP, "recompute blocks", "gather params per step"),
    "interleaved_1f1b": ("pp 2 > tp 2", PP.format("interleaved_1f1b(chunks = 2)"), TP, SP),
    "looped_bfs": ("pp 2 > dp 2", PP.format("looped_bfs(chunks = 2)"), "use zero1 over dp"),
    "zero_bubble": ("pp 2 > fsdp 2", PP.format("interleaved_zero_bubble(chunks = 2)"), FSDP),
    "zero_bubble_tp": ("pp 2 > tp 2", PP.format("interleaved_zero_bubble(chunks = 2)"), TP, SP),
    "zbv": ("pp 2 > fsdp 2", PP.format("zbv"), FSDP, STEP),
    "zbv_tp": ("pp 2 > tp 2", PP.format("zbv"), TP, SP),
    "dualpipev": ("pp 2 > fsdp 2", PP.format("dualpipev"), FSDP),
    "dualpipev_uneven": ("pp 2 > tp 2", PP.format("dualpipev stages [embed, 2, 1, 1 + head]"), TP, SP),
    "1f1b_uneven": ("pp 4", PP.format("1f1b stages [embed, 1, 2, 1 + head]")),
    "four_chunks": ("pp 2 > fsdp 2", PP.format("interleaved_1f1b(chunks = 4)"), FSDP, STEP),
    "four_chunks_per_pass": ("pp 2 > fsdp 2", PP.format("looped_bfs(chunks = 4)"), FSDP, "gather params per pass"),
    "interleaved_uneven": ("pp 2 > dp 2", PP.format("interleaved_1f1b stages [embed + 2, 1, 1, head]"), ZERO2),
}
"""Pipelines."""

CP = "use cp over cp"
RING = "use cp over cp as ring"
ULYSSES = "use ulysses over cp"

CONTEXT: dict[str, tuple[str, ...]] = {
    "cp": ("cp 4", CP),
    "cp_in_order": ("cp 2 > dp 2", "use zero2 over dp", "shard sequence over cp"),
    "cp_fsdp": ("fsdp 2 > cp 2", FSDP, CP),
    "cp_stored": ("cp 2 > fsdp 2", "shard batch over fsdp", "store params, grads, optimizer over fsdp, cp", CP),
    "cp_recompute": ("cp 2 > fsdp 2", FSDP, CP, "recompute attention.core"),
    "cp_tp": ("cp 2 > tp 2", CP, TP, SP),
    "cp_pp": ("pp 2 > cp 2", PP.format("1f1b"), "store optimizer over cp", CP),
    "cp_end_alone": ("pp 2 > cp 2", PP.format("gpipe stages [embed + 4, head]"), CP),
    "ring": ("cp 4", RING),
    "ring_in_order": (
        "cp 2 > dp 2",
        "use ddp over dp",
        "shard sequence over cp",
        "attention.core as ring(balance = none)",
    ),
    "ring_fsdp": ("fsdp 2 > cp 2", FSDP, RING, "recompute blocks"),
    "ring_tp": ("cp 2 > tp 2", RING, TP, SP),
    "ring_bf16": ("cp 4", RING, BF16),
    "ring_flash": ("fsdp 2 > cp 2", FSDP, RING, "attention.core as flash"),
    "cp_flash": ("fsdp 2 > cp 2", FSDP, CP, "attention.core as flash"),
    "cp_unfused": ("cp 2 > tp 2", CP, TP, SP, "attention.core as unfused"),
    "ulysses": ("cp 4", ULYSSES),
    "ulysses_tp": ("cp 2 > tp 2", ULYSSES, "shard heads, ffn over tp"),
    "ulysses_fsdp": ("cp 2 > fsdp 2", FSDP, ULYSSES),
    "cp_mistral_micro": ("fsdp 2 > cp 2", FSDP, CP),
    "ring_mistral_micro": ("cp 4", RING),
    "ring_mistral_micro_fsdp": ("fsdp 2 > cp 2", FSDP, RING, "recompute blocks except attention.core"),
    "ring_mistral_micro_in_order": (
        "cp 2 > tp 2",
        "shard sequence over cp",
        "attention.core as ring(balance = none)",
        TP,
        SP,
    ),
    "outside_in": ("tp 2 > fsdp 2", FSDP, TP, SP),
}
"""Context parallelism, and meshes in another order than torch's."""

BLOCKS: dict[str, tuple[str, ...]] = {
    "kernel_flash": ("fsdp 2 > tp 2", FSDP, TP, SP, "attention.core as flash"),
    "kernel_unfused": ("cp 4", ULYSSES, "attention.core as unfused", "recompute blocks every 3 layers"),
    "keep_attention": ("fsdp 4", FSDP, "recompute blocks except attention.core"),
    "keep_attention_tp": ("fsdp 2 > tp 2", FSDP, TP, SP, "recompute blocks except attention.core"),
    "keep_matmul": ("fsdp 4", FSDP, f"recompute blocks except {MATMULS}"),
    "keep_matmul_ulysses": ("cp 4", ULYSSES, f"recompute blocks except {MATMULS}"),
    "every_other": (
        "pp 2 > tp 2",
        PP.format("interleaved_1f1b(chunks = 2)"),
        TP,
        SP,
        "recompute blocks every 2 layers",
    ),
    "every_other_tp": ("fsdp 2 > tp 2", FSDP, TP, SP, "recompute attention.core, ffn.down every 2 layers"),
    "offload": ("fsdp 4", FSDP, "offload params, optimizer to host"),
    "offload_tp": ("fsdp 2 > tp 2", FSDP, TP, SP, "offload params, optimizer to host"),
    "offload_inputs": ("fsdp 2 > tp 2", FSDP, TP, SP, "recompute blocks", "offload hidden to host"),
    "replay_attention": ("fsdp 4", FSDP, "recompute attention"),
    "replay_ffn_tp": ("fsdp 2 > tp 2", FSDP, TP, SP, "recompute ffn"),
    "replay_light_tp": ("fsdp 2 > tp 2", FSDP, TP, SP, "recompute attention.norm, ffn.norm, ffn.swiglu"),
    "replay_swiglu_tp": ("fsdp 2 > tp 2", FSDP, TP, SP, "recompute ffn.swiglu every 2 layers"),
    "keep_matmul_tp": ("fsdp 2 > tp 2", FSDP, TP, SP, f"recompute blocks except {MATMULS}"),
    "keep_ring": ("fsdp 2 > cp 2", FSDP, RING, "recompute blocks except attention.core"),
    "keep_ring_tp": ("cp 2 > tp 2", RING, TP, SP, "recompute blocks except attention.core"),
    "keep_attention_cp": ("fsdp 2 > cp 2", FSDP, CP, "recompute blocks except attention.core"),
}
"""Layouts by what they do to blocks and state besides dividing them."""

COMPILED: dict[str, tuple[str, ...]] = {
    "compile_fsdp": ("fsdp 4", FSDP, "recompute blocks", "compile blocks, loss"),
    "compile_tp": ("fsdp 2 > tp 2", FSDP, TP, SP, "recompute blocks", "compile blocks as inductor"),
    "compile_overlap": ("fsdp 2 > tp 2", FSDP, TP, SP, "compile blocks as inductor", "overlap tp as async_matmul"),
    "compile_cp": ("fsdp 2 > cp 2", FSDP, CP, "recompute blocks", "compile blocks"),
    "compile_ring_tp": ("cp 2 > tp 2", RING, NO_VOCAB, SP, "compile blocks"),
    "compile_loss_tp": ("fsdp 2 > tp 2", FSDP, TP, SP, "compile loss"),
}
"""Compiled blocks: a minute of tracing on two cores."""

FLOAT8: dict[str, tuple[str, ...]] = {
    "float8_rowwise": ("fsdp 4", FSDP, BF16, "quantize ffn, attention as float8(rowwise) except layers 0"),
    "float8_tensorwise": ("pp 2 > fsdp 2", PP.format("1f1b"), FSDP, BF16, "quantize ffn, head as float8(tensorwise)"),
    "float8_rowwise_tp": (
        "fsdp 2 > tp 2",
        FSDP,
        NO_VOCAB,
        SP,
        BF16,
        "quantize ffn, attention as float8(rowwise) except layers 0",
        "recompute blocks every 2 layers",
    ),
    "float8_tensorwise_tp": ("pp 2 > tp 2", PP.format("1f1b"), NO_VOCAB, BF16, "quantize ffn as float8(tensorwise)"),
}
"""Matmuls in float8, against one process that multiplies the same way."""

ALL_BF16 = "store params, grads, optimizer as bf16"
NARROW_STATE: dict[str, tuple[str, ...]] = {
    "state_bf16": ("fsdp 4", FSDP, f"{ALL_BF16} over fsdp"),
    "state_bf16_whole": ("dp 4", "shard batch over dp", ALL_BF16),
    "state_bf16_tp": ("fsdp 2 > tp 2", FSDP, NO_VOCAB, SP, f"{ALL_BF16} over fsdp"),
    "state_bf16_1f1b": ("pp 2 > fsdp 2", PP.format("1f1b"), FSDP, f"{ALL_BF16} over fsdp"),
}
"""Parameters, gradients and moments in bf16, against one process that rounds them as often."""

ONE: dict[str, tuple[str, ...]] = {"one": ("fsdp 1", FSDP), "one_bf16": ("tp 1", TP, SP, BF16)}
"""One rank: axes of size 1 divide nothing."""

THREE_D: dict[str, tuple[str, ...]] = {
    "pp_fsdp_tp": ("pp 2 > fsdp 2 > tp 2", PP.format("interleaved_1f1b(chunks = 2)"), FSDP, TP, SP),
    "two_parts_fsdp": ("fsdp 2 > a 2 > tp 2", FSDP, "shard heads over a", "shard ffn, vocab over tp"),
    "part_of_axes_fsdp": (
        "fsdp 2 > tp 2 > a 2",
        FSDP,
        "shard heads over tp, a",
        "shard ffn, vocab over tp",
        "recompute ffn, attention.norm",
    ),
    "two_parts_1f1b": ("pp 2 > a 2 > tp 2", PP.format("1f1b"), "shard heads over a", "shard ffn, vocab over tp"),
    "roles_apart": ("a 2 > tp 2 > b 2", "shard batch over a, b", "shard heads, ffn over tp"),
    "pp_fsdp_cp": ("cp 2 > fsdp 2 > pp 2", PP.format("zbv"), FSDP, STEP, CP),
    "fsdp_cp_tp": ("tp 2 > cp 2 > dp 2", "shard batch over dp", "store optimizer over cp, dp", RING, TP, SP),
    "hsdp_tp": ("replica 2 > fsdp 2 > tp 2", "use hsdp over replica, fsdp", TP, SP),
}
"""Eight ranks."""


MODELS: dict[str, tuple[str, ...]] = {
    "mistral_micro": ("fsdp 2 > tp 2", FSDP, TP, SP),
    "mistral_micro_recomputed": ("pp 2 > fsdp 2", PP.format("1f1b"), FSDP, "recompute attention.core"),
    "qwen3_micro": ("fsdp 2 > tp 2", FSDP, TP, SP),
    "qwen3_micro_tp": ("dp 2 > tp 2", "use zero1 over dp", "shard heads over tp"),
}
"""Further bundled families; the model's name is in the layout's."""

TIED: dict[str, tuple[str, ...]] = {
    "tied_fsdp": ("fsdp 4", FSDP),
    "tied_hsdp": ("replica 2 > fsdp 2", "use hsdp over replica, fsdp", "gather params per step"),
    "tied_zero1": ("dp 4", "use zero1 over dp", BF16),
    "tied_dp_tp": ("dp 2 > tp 2", "use ddp over dp", TP),
    "tied_tp_sp": ("fsdp 2 > tp 2", FSDP, TP, SP, "recompute blocks"),
    "tied_tp_no_vocab": ("dp 2 > tp 2", "use zero1 over dp", "shard heads, ffn over tp", SP),
    "tied_embed": ("fsdp 2 > tp 2", FSDP, "shard embed over tp in embedding", "shard embed over tp in head"),
    "tied_cp": ("fsdp 2 > cp 2", FSDP, RING),
    "tied_1f1b": ("pp 2 > fsdp 2", PP.format("1f1b"), FSDP),
    "tied_gpipe_four": ("pp 4", PP.format("gpipe")),
    "tied_interleaved_tp": ("pp 2 > tp 2", PP.format("interleaved_1f1b(chunks = 2)"), TP, SP),
    "tied_zbv": ("pp 2 > fsdp 2", PP.format("zbv"), FSDP, STEP),
    "tied_dualpipev_tp": ("pp 2 > tp 2", PP.format("dualpipev"), TP, SP),
    "tied_qwen3_micro": ("pp 2 > fsdp 2", PP.format("1f1b stages [embed, 4 + head]"), FSDP),
}
"""A head that uses the embedding's weight."""

TIED_3D: dict[str, tuple[str, ...]] = {
    "tied_pp_fsdp": ("pp 4 > fsdp 2", PP.format("1f1b"), FSDP),
    "tied_pp_fsdp_tp": ("pp 2 > fsdp 2 > tp 2", PP.format("zbv"), FSDP, STEP, TP, SP),
}
"""The same on eight ranks."""

WHOLE_KEYS = "replicate kv_heads over tp"
KEYS: dict[str, tuple[str, ...]] = {
    "two_keys": ("tp 4", "shard heads over tp", WHOLE_KEYS),
    "one_key": ("fsdp 2 > tp 2", FSDP, TP, SP, WHOLE_KEYS, "recompute blocks"),
    "one_key_cp": ("cp 2 > tp 2", CP, TP, WHOLE_KEYS),
    "one_key_qwen3_micro": ("pp 2 > tp 2", PP.format("1f1b"), TP, SP, WHOLE_KEYS),
}
"""More ranks of tensor parallelism than key heads, as many as the name says."""

UNEVEN: dict[str, tuple[str, ...]] = {
    "uneven_tp": ("fsdp 2 > tp 2", FSDP, TP),
    "uneven_tp_sp": ("dp 2 > tp 2", "use zero1 over dp", TP, SP),
    "uneven_1f1b": ("pp 2 > tp 2", PP.format("1f1b"), TP, SP),
    "uneven_four": ("tp 4", "shard heads, vocab over tp"),
    "uneven_tied": ("pp 2 > tp 2", PP.format("1f1b"), TP, SP),
}
"""A vocabulary of 137 tokens, of which the last rank has fewer."""

LOSS: dict[str, tuple[str, ...]] = {
    "chunks": ("fsdp 4", FSDP, "loss in 4 chunks"),
    "chunks_bf16": ("fsdp 4", FSDP, BF16, "loss in 4 chunks"),
    "chunks_ddp": ("dp 4", "use ddp over dp", "loss in 6 chunks"),
    "chunks_step": ("fsdp 4", FSDP, STEP, "loss in 2 chunks"),
    "chunks_tp": ("tp 4", "shard heads, vocab over tp", "loss in 4 chunks"),
    "chunks_tp_sp": ("fsdp 2 > tp 2", FSDP, TP, SP, "recompute blocks", "loss in 8 chunks"),
    "chunks_no_vocab": ("fsdp 2 > tp 2", FSDP, NO_VOCAB, SP, "loss in 3 chunks"),
    "chunks_two_axes": ("a 2 > b 2", "shard heads, vocab over a, b", "loss in 2 chunks"),
    "chunks_cp": ("fsdp 2 > cp 2", FSDP, CP, "loss in 4 chunks"),
    "chunks_1f1b": ("pp 2 > fsdp 2", PP.format("1f1b"), FSDP, "loss in 4 chunks"),
    "chunks_gpipe_tp": ("pp 2 > tp 2", PP.format("gpipe"), TP, SP, "loss in 4 chunks"),
    "chunks_interleaved": ("pp 2 > fsdp 2", PP.format("interleaved_1f1b(chunks = 2)"), FSDP, "loss in 2 chunks"),
    "chunks_zbv": ("pp 2 > tp 2", PP.format("zbv"), TP, SP, "loss in 4 chunks"),
    "chunks_frozen": ("fsdp 2 > tp 2", FSDP, TP, SP, "freeze head", "loss in 4 chunks"),
    "chunks_tied": ("fsdp 4", FSDP, "loss in 4 chunks"),
    "chunks_tied_tp_sp": ("fsdp 2 > tp 2", FSDP, TP, SP, "loss in 4 chunks"),
    "chunks_tied_1f1b": ("pp 2 > fsdp 2", PP.format("1f1b"), FSDP, "loss in 4 chunks"),
    "chunks_uneven": ("fsdp 2 > tp 2", FSDP, TP, SP, "loss in 4 chunks"),
}
"""The loss in chunks of the tokens."""

QUICK = {
    *("one", "fsdp_tp_sp", "zbv", "ring_in_order", "chunks_tp_sp"),
}
"""Trained by `make test`."""
IN_CI = {
    *(
        "hsdp",
        "fsdp_step",
        "lora_fsdp_tp_recompute",
        "lora_qwen2_micro_tp",
        "dualpipev",
        "ring_tp",
        "ulysses_fsdp",
        "offload",
    ),
    *("keep_attention_cp", "float8_rowwise_tp", "state_bf16", "tied_1f1b", "1f1b", "cp_stored", "one_key"),
    *("eight_microbatches", "chunks", "chunks_1f1b", "chunks_tied_tp_sp"),
}
"""Trained by CI too, with each mechanism among them; `make all` and `make parity` train all."""

LAYOUTS = {
    **ONE,
    **STATE,
    **TENSOR,
    **FINE_TUNED,
    **PIPELINE,
    **CONTEXT,
    **BLOCKS,
    **FLOAT8,
    **NARROW_STATE,
    **COMPILED,
    **THREE_D,
    **MODELS,
    **TIED,
    **TIED_3D,
    **KEYS,
    **UNEVEN,
    **LOSS,
}


TWO_AT_A_TIME = ("zero_bubble", "zbv", "dualpipev", "eight", "ring_in_order", "tied_pp")
"""Parts of the names of layouts with two sequences a microbatch, and so more microbatches."""


def case(name: str) -> Plan:
    """The plan of a named layout."""
    mesh, *sentences = LAYOUTS[name]
    microbatch = 2 if name in STATE or name == "state_bf16" or any(part in name for part in TWO_AT_A_TIME) else 4
    model = next((m for m in ("mistral_micro", "qwen3_micro", "qwen2_micro") if m in name), "llama_micro")
    if "tied" in name:
        model = f"{model}_tied"
    tokens = 24 if "llama_micro" in model else 32
    if name in KEYS:
        model += f"(kv_heads = {'12'[name.startswith('two')]})"
    if "four_chunks" in name:
        model += "(layers = 8)"
    if name in UNEVEN or name == "chunks_uneven":
        model += "(vocab = 137)"
    return plan_of(f"case_{name}", mesh, *sentences, model=model, batch=f"16 x {tokens} tokens microbatch {microbatch}")
