"""Modules under plans that were read from their code train as they do undivided, all in one launch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from planc.trainer.run.launch import run
from tests.rows import rows_of

WORKER = Path(__file__).with_name("traced_worker.py")
BUDGET = 1e-5
CASES: dict[str, tuple[str, ...]] = {
    "sp": (
        "a",
        "apertus",
        "arcee",
        "c",
        "code_between",
        "code_in_blocks",
        "cohere",
        "deepseek_v3",
        "diffllama",
        "falcon",
        "gemma2",
        "gemma3_text",
        "glm4",
        "granite",
        "in_blocks",
        "laguna",
        "lists",
        "llama",
        "mistral",
        "nanochat",
        "olmo2",
        "our_names",
        "pairs",
        "phi3",
        "qwen2_moe",
        "smollm3",
    ),
    "tp": (
        "bitnet",
        "bloom",
        "code_in_halves",
        "codegen",
        "deepseek_v2",
        "ernie4_5_moe",
        "gpt2",
        "gpt_neox",
        "gptj",
        "lfm2",
        "mamba",
        "mpt",
        "opt",
        "own",
        "phi",
        "qwen2",
        "recurrent_gemma",
        "starcoder2",
    ),
    "keys": ("gpt_bigcode", "qwen2"),
    "halves": ("b", "nested", "sequence"),
    "ep": ("deepseek_v2", "deepseek_v3", "gpt_oss", "granitemoe", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe"),
    "heads": ("gpt_oss", "mixtral", "olmoe"),
}
"""Families by layout: those with learned positions or biases do not divide the sequence, `keys` leaves keys whole;
`own`, `a`, `b`, `c` and those of `ways_of_writing` and `whole_code` are modules of no family."""


@pytest.mark.launch
@pytest.mark.long
def test_models_read_from_their_code_train_as_undivided_ones() -> None:
    pytest.importorskip("transformers")
    cases = [f"{family}:{layout}" for layout, families in CASES.items() for family in families]
    finished = run([sys.executable, str(WORKER), *cases], 4, timeout_s=900)
    assert finished.ok, finished.outputs[finished.failed_rank or 0][-4000:]
    rows = rows_of(finished.outputs[0])
    assert [f"{row['name']}:{row['layout']}" for row in rows] == cases
    for row in rows:
        assert row.get("apart", 1.0) <= BUDGET, row
