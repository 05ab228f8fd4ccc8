"""A model without a module in a target's `models` is checked and costed, and not lowered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planc import check
from tests.catalog.published import CONFIGS
from tests.plans import BODY, HEAD

TARGETS = ("cuda", "xla")


def refusals(folder: Path, model: str, target: str) -> list[tuple[str, int, str]]:
    path = folder / "example.plan"
    path.write_text(HEAD.replace("model     llama3_8b", model) + BODY)
    return [(d.code, d.span.line, d.message) for d in check(path, target=target).diagnostics if d.severity == "error"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("model", "says"),
    [("model qwen3_8b", "no module of the qwen3 family"), ("model llama3_2_1b", "it is the embedding's")],
)
def test_it_is_refused_at_the_sentence(tmp_path: Path, model: str, says: str, target: str) -> None:
    ((code, line, message),) = refusals(tmp_path, model, target)
    assert (code, line) == ("E0901", 2) and says in message and f"{target} target" in message


@pytest.mark.parametrize("target", TARGETS)
def test_scaled_positions_are_refused(tmp_path: Path, target: str) -> None:
    config = {**CONFIGS["llama3_2_1b"], "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ((code, _, message),) = refusals(tmp_path, 'model from "config.json"', target)
    assert code == "E0901" and "does not scale rotary positions (llama3)" in message


@pytest.mark.parametrize("target", TARGETS)
def test_the_llama_family_is_not_refused(tmp_path: Path, target: str) -> None:
    assert refusals(tmp_path, "model llama3_1_8b", target) == []
