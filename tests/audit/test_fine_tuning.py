"""Frozen parameters and low-rank updates on up to 64 devices: collectives and peaks as predicted."""

from __future__ import annotations

import pytest

from planc.backends.cuda.audit.run import audit
from planc.ir.audit import AuditOptions, differences
from tests.audit.cases import BLOCKS, EXPERTS, FSDP, HSDP, PER_STEP, SP, TP, Case, built

PEAK_WITHIN, FLOPS_WITHIN = 0.05, 0.005
LLAMA = "llama3_8b(layers = 4)"
LAYOUTS: dict[str, Case] = {
    "heads_64": Case(LLAMA, "fsdp 64", (FSDP, BLOCKS, "lora rank 16 on heads")),
    "all_tp_64": Case(LLAMA, "fsdp 8 > tp 8", (FSDP, TP, SP, "lora rank 64 alpha 128 on heads, ffn", BLOCKS)),
    "all_tp_kept_32": Case(LLAMA, "fsdp 8 > tp 4", (FSDP, TP, SP, "lora rank 256 on heads, ffn"), tokens=1024),
    "values_hsdp_32": Case(
        LLAMA, "replica 4 > fsdp 8", (HSDP, PER_STEP, "lora rank 16 on attention.q, attention.v"), microbatches=2
    ),
    "embedding_64": Case(LLAMA, "fsdp 64", (FSDP, "freeze embedding, norms", BLOCKS)),
    "attention_tp_32": Case("mistral_7b(layers = 4)", "fsdp 4 > tp 8", (FSDP, TP, "freeze attention", BLOCKS)),
    "head_alone_32": Case(LLAMA, "fsdp 32", (FSDP, "freeze model except head"), tokens=4096),
    "blocks_8": Case(LLAMA, "fsdp 8", ("use zero2 over fsdp", "freeze blocks"), tokens=4096),
    "few_tokens_96": Case(
        "llama3_8b(layers = 3)", "fsdp 96", (FSDP, "lora rank 8 on q_proj, v_proj", BLOCKS), tokens=256
    ),
    "experts_32": Case(
        "mixtral_8x7b(layers = 3)", "fsdp 32", (FSDP, "lora rank 8 on q_proj, v_proj", BLOCKS), tokens=4096
    ),
    "experts_qwen3_32": Case(
        "qwen3_30b_a3b(layers = 3)", "fsdp 32", (FSDP, "lora rank 8 on attention", BLOCKS), tokens=4096
    ),
    "experts_ep_64": Case(
        "mixtral_8x7b(layers = 4)", "fsdp 8 > ep 8", (*EXPERTS, "lora rank 16 on attention"), tokens=2048
    ),
    "frozen_experts_64": Case("mixtral_8x7b(layers = 4)", "fsdp 8 > ep 8", (*EXPERTS, "freeze experts"), tokens=2048),
}
LONG = ("all_tp_64", "embedding_64", "head_alone_32", "few_tokens_96", "experts_ep_64")
MARKS = {"heads_64": (), **dict.fromkeys(LONG, (pytest.mark.long,))}


@pytest.mark.launch
@pytest.mark.parametrize("name", [pytest.param(n, marks=MARKS.get(n, pytest.mark.slow)) for n in LAYOUTS])
def test_a_layout_moves_and_holds_what_was_predicted(name: str) -> None:
    found = audit(built(name, LAYOUTS[name]), AuditOptions())
    assert differences(found.rows) == [] and found.unparsed == ()
    assert all(abs(m.predicted_flops / m.observed_flops - 1) <= FLOPS_WITHIN for m in found.matmuls)
    assert all(abs(m.relative) <= PEAK_WITHIN for m in found.memory)
