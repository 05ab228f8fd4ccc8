"""Modules under plans that were read from their code train as they do undivided, all in one launch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from planc.trainer.run.launch import run
from tests.rows import rows_of

WORKER = Path(__file__).with_name("traced_worker.py")
BUDGET = 1e-5
IN_CI: dict[str, tuple[str, ...]] = {
    "sp": (*("c", "code_in_blocks", "deepseek_v3", "falcon", "gemma2", "lists", "pairs"),),
    "tp": ("code_in_halves", "gpt2", "lfm2", "own", "recurrent_gemma"),
    "keys": ("gpt_bigcode",),
    "halves": ("nested", "sequence"),
    "ep": ("gpt_oss",),
    "heads": ("mixtral",),
}
"""Families by layout, with each way of writing a module among them; those with learned positions or biases do not
divide the sequence, `keys` leaves keys whole; `own`, `a`, `b`, `c` and those of `ways_of_writing` and `whole_code` are
modules of no family."""
OTHERS: dict[str, tuple[str, ...]] = {
    "sp": (
        *(
            "a",
            "apertus",
            "arcee",
            "code_between",
            "cohere",
            "diffllama",
            "gemma3_text",
            "glm4",
            "granite",
            "in_blocks",
        ),
        *("laguna", "llama", "mistral", "nanochat", "olmo2", "our_names", "phi3", "qwen2_moe", "smollm3"),
    ),
    "tp": (
        *("bitnet", "bloom", "codegen", "deepseek_v2", "ernie4_5_moe", "gpt_neox", "gptj", "mamba", "mpt", "opt"),
        *("phi", "qwen2", "starcoder2"),
    ),
    "keys": ("qwen2",),
    "halves": ("b",),
    "ep": ("deepseek_v3", "deepseek_v2", "granitemoe", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe"),
    "heads": ("gpt_oss", "olmoe"),
}


@pytest.mark.launch
@pytest.mark.parametrize(
    "layouts",
    [
        pytest.param(IN_CI, id="in_ci", marks=pytest.mark.long),
        pytest.param(OTHERS, id="others", marks=pytest.mark.slow),
    ],
)
def test_models_read_from_their_code_train_as_undivided_ones(layouts: dict[str, tuple[str, ...]]) -> None:
    pytest.importorskip("transformers")
    cases = [f"{family}:{layout}" for layout, families in layouts.items() for family in families]
    finished = run([sys.executable, str(WORKER), *cases], 4, timeout_s=1800)
    assert finished.ok, finished.outputs[finished.failed_rank or 0][-4000:]
    rows = rows_of(finished.outputs[0])
    assert [f"{row['name']}:{row['layout']}" for row in rows] == cases
    for row in rows:
        assert row.get("apart", 1.0) <= BUDGET, row
