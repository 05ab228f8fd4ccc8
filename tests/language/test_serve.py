"""Serve plans: what they take from the training plan, and what their sentences refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.driver import check
from planc.language.build import Built, build_serve
from tests.plans import BODY, HEAD, HEAD_BF16

SERVE = """serve rollout of "train.plan"
mesh      dp 16 > tp 4
use       ddp over dp
use       tp  over tp
"""
LORA = "freeze model\nlora rank 8 on heads\n"


def built(folder: Path, text: str, trainer: str = HEAD_BF16 + BODY) -> Built:
    """The result of reading a serve plan beside this training plan."""
    (folder / "train.plan").write_text(trainer)
    path = folder / "rollout.plan"
    path.write_text(text)
    return build_serve(path)


def test_a_serve_plan_has_the_model_of_its_trainer_and_a_layout_of_its_own(tmp_path: Path) -> None:
    serve = built(tmp_path, SERVE).serve
    assert serve is not None and serve.layout.model is serve.trainer.model
    assert (serve.trainer.mesh.sizes, serve.layout.mesh.sizes) == ({"fsdp": 8, "tp": 8}, {"dp": 16, "tp": 4})
    assert serve.colocated and serve.replicas == 16
    assert (serve.weights.dtype, serve.weights.block, serve.cache_dtype) == ("bf16", 0, "bf16")
    assert (serve.cache, serve.requests, serve.sync.every_steps, serve.sync.changed) == (None, None, 1, 1.0)
    assert {"train.plan", "rollout.plan"} == set(serve.sources)


def test_its_own_sentences(tmp_path: Path) -> None:
    said = [
        "store params as float8(block = 128)",
        "cache 256 k tokens as float8",
        "requests 64 x 1024 + 4096 tokens",
        "sync every 4 steps changed 3 %",
        "sleep params, cache while training",
        "sleep optimizer while serving",
        "expect cache >= 200 k tokens",
        "expect sync_time <= 2 s",
        "cluster 8 x h100_node",
    ]
    serve = built(tmp_path, SERVE + "\n".join(said) + "\n").serve
    assert serve is not None and serve.cache is not None and serve.requests is not None
    assert (serve.weights.dtype, serve.weights.block) == ("float8", 128)
    assert (serve.cache.tokens, serve.cache.dtype, serve.requests.tokens) == (256_000, "float8", 5120)
    assert (serve.sync.every_steps, serve.sync.changed) == (4, 0.03)
    assert sorted(serve.asleep("training")) == ["cache", "params"] and list(serve.asleep("serving")) == ["optimizer"]
    assert [(e.metric, e.value) for e in serve.expects] == [("cache", 200_000), ("sync_time", 2.0)]
    assert not serve.colocated


@pytest.mark.parametrize(
    ("sentence", "code"),
    [
        ("optimizer adamw", "E1501"),
        ("batch 8 x 4096 tokens", "E1501"),
        ("model llama3_8b", "E1501"),
        ("use fsdp over dp for embedding", "E0108"),
        ("store grads as bf16", "E0108"),
        ("store params over dp", "E0108"),
        ("store params as int4", "E0108"),
        ("store params as bf16(block = 128)", "E0108"),
        ("store params as float8(block = 0)", "E0103"),
        ("cache 0 tokens", "E0103"),
        ("cache 4 k tokens as int8", "E0108"),
        ("cache 4 GiB tokens", "E0103"),
        ("requests 0 x 8 + 8 tokens", "E0103"),
        ("sync every 0 steps", "E0103"),
        ("sync every 1 steps changed 0 %", "E0103"),
        ("sync every 1 steps changed 120 %", "E0103"),
        ("sleep optimizer while training", "E0108"),
        ("sleep cache while resting", "E0108"),
        ("expect mfu >= 40 %", "E0108"),
        ("expect cache >= 4 k", "E0103"),
        ("expect memory <= 4 tokens", "E0103"),
        ("mesh tp 4", "E0107"),
        ("shard heads over sp", "E0108"),
    ],
)
def test_what_is_refused(tmp_path: Path, sentence: str, code: str) -> None:
    found = built(tmp_path, SERVE + sentence + "\n")
    assert found.serve is None and code in {d.code for d in found.diagnostics}


@pytest.mark.parametrize(
    ("header", "trainer", "code"),
    [
        ('serve rollout of "none.plan"', HEAD + BODY, "E1502"),
        ('serve rollout of "../train.plan"', HEAD + BODY, "E0111"),
        ('serve rollout of "train.plan"', HEAD.replace("llama3_8b", "llama9") + BODY, "E1502"),
        ('serve rollout of "train.plan"', HEAD_BF16 + BODY + LORA, "E1502"),
        ('serve rollout of "rollout.plan"', HEAD + BODY, "E1502"),
        ("serve rollout", HEAD + BODY, "E0102"),
    ],
)
def test_which_trainers_are_refused(tmp_path: Path, header: str, trainer: str, code: str) -> None:
    found = built(tmp_path, SERVE.replace('serve rollout of "train.plan"', header), trainer)
    assert found.serve is None and code in {d.code for d in found.diagnostics}


@pytest.mark.parametrize("sentence", ["cache 4 k tokens", "requests 1 x 2 + 3 tokens", "sync every 1 steps"])
def test_a_training_plan_has_none_of_them(tmp_path: Path, sentence: str) -> None:
    path = tmp_path / "train.plan"
    path.write_text(HEAD_BF16 + BODY + sentence + "\n")
    assert "E1501" in {d.code for d in check(path).diagnostics}


def test_options_of_a_dtype_that_has_none_are_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "train.plan"
    path.write_text(HEAD_BF16 + BODY + "store params as bf16(block = 128)\n")
    assert "E0108" in {d.code for d in check(path).diagnostics}
