"""Models of the transformers package train under a plan as they do undivided."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from planc.backends.cuda.runtime.hf_adapter import bound, our_name
from planc.trainer.run.launch import run
from tests.rows import rows_of

WORKER = Path(__file__).with_name("hugging_face.py")
BUDGET = 1e-5


@pytest.mark.launch
@pytest.mark.long
def test_models_of_transformers_train_as_undivided_ones() -> None:
    pytest.importorskip("transformers")
    finished = run([sys.executable, str(WORKER)], 4, timeout_s=600)
    assert finished.ok, finished.outputs[finished.failed_rank or 0][-4000:]
    rows = rows_of(finished.outputs[0])
    assert {row["name"].split("_")[0] for row in rows} == {"llama", "qwen3", "mixtral"}
    for row in rows:
        assert row["loss"] <= BUDGET, row
        assert row["gradient"] <= BUDGET, row
        here, whole = row["parameters"]
        assert here == whole or "pipeline" in row["name"], row


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("model.embed_tokens.weight", "tok_embeddings.weight"),
        ("model.layers.3.self_attn.q_proj.weight", "layers.3.attention.wq.weight"),
        ("model.layers.0.self_attn.k_norm.weight", "layers.0.attention.k_norm.weight"),
        ("model.layers.11.mlp.down_proj.weight", "layers.11.feed_forward.w2.weight"),
        ("lm_head.weight", "output.weight"),
    ],
)
def test_names(theirs: str, ours: str) -> None:
    assert our_name("qwen3", theirs) == ours


def test_what_is_not_of_transformers_is_left_as_it_is() -> None:
    own = object()
    assert bound(own, 8) is own


def test_a_family_without_a_table_is_refused_by_name() -> None:
    class Config:
        model_type = "bert"

    class Model:
        config, lm_head = Config(), None

    with pytest.raises(ValueError, match="bert models; there are llama, qwen3, mixtral"):
        bound(Model(), 8)
