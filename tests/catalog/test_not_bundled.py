"""A model without a module in a target's `models` is checked and costed, and not trained.

The xla target does not lower it either; the cuda target's program takes a module of the user's.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planc import check, load
from planc.checks import check_plan
from planc.diag import PlanError
from planc.ir.target import Target
from planc.lowering import lower_to_train
from tests.catalog.published import CONFIGS
from tests.plans import BODY, HEAD

TARGETS = ("cuda", "xla")


def write(folder: Path, model: str) -> Path:
    path = folder / "example.plan"
    path.write_text(HEAD.replace("model     llama3_8b", model) + BODY)
    return path


def refusals(folder: Path, model: str, target: Target) -> list[tuple[str, int, str]]:
    report = check(write(folder, model), target=target)
    return [(d.code, d.span.line, d.message) for d in report.diagnostics if d.severity == "error"]


def untrained(folder: Path, model: str, target: Target) -> list[tuple[str, int, str]]:
    with pytest.raises(PlanError) as raised:
        lower_to_train(check_plan(load(write(folder, model))), target)
    return [(d.code, d.span.line, d.message) for d in raised.value.diagnostics]


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("model llama4_scout", "no module of the llama4 family"),
        ("model mpt_7b", "no module of the mpt family"),
        ("model nemotron_h_8b", "no module of the nemotron_h family"),
        ("model deepseek_v2_lite(mtp_layers = 1)", "module predicts no further tokens"),
    ],
)
def test_it_is_refused_at_the_sentence(tmp_path: Path, model: str, says: str) -> None:
    ((code, line, message),) = refusals(tmp_path, model, "xla")
    assert (code, line) == ("E0901", 2) and says in message and "xla target" in message


@pytest.mark.parametrize("target", TARGETS)
def test_it_is_not_trained(tmp_path: Path, target: Target) -> None:
    ((code, line, message),) = untrained(tmp_path, "model llama4_scout", target)
    assert (code, line) == ("E0901", 2) and "no module of the llama4 family" in message


def test_a_program_s_loss_is_of_the_next_token(tmp_path: Path) -> None:
    """Not even for a module of the user's own."""
    ((code, line, message),) = refusals(tmp_path, "model deepseek_v2_lite(mtp_layers = 1)", "cuda")
    assert (code, line) == ("E0901", 2) and "has no MTP modules" in message


def test_a_program_is_lowered_for_a_module_of_the_users_own(tmp_path: Path) -> None:
    assert refusals(tmp_path, "model llama4_scout(layers = 8)", "cuda") == []


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("model", ["llama3_2_1b", "llama3_2_3b", "qwen3_0_6b", "qwen3_1_7b", "qwen3_4b"])
def test_tied_weights_are_lowered(tmp_path: Path, target: Target, model: str) -> None:
    assert refusals(tmp_path, f"model {model}", target) == []


SCALINGS: dict[str, tuple[dict[str, object], str]] = {
    "llama3": (CONFIGS["llama3_2_1b"]["rope_scaling"], ""),
    "linear": ({"rope_type": "linear", "factor": 4.0}, ""),
    "yarn": ({"rope_type": "yarn", "factor": 4.0}, "does not scale rotary positions (yarn)"),
    "dynamic": ({"rope_type": "dynamic", "factor": 4.0}, "does not scale rotary positions (dynamic)"),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", SCALINGS)
def test_positions_are_scaled_as_a_module_can(tmp_path: Path, target: Target, kind: str) -> None:
    scaling, says = SCALINGS[kind]
    config = {**CONFIGS["llama3_2_1b"], "rope_scaling": scaling}
    (tmp_path / "config.json").write_text(json.dumps(config))
    sentence = 'model from "config.json"'
    if not says:
        assert lower_to_train(check_plan(load(write(tmp_path, sentence))), target).text
        return
    ((code, _, message),) = untrained(tmp_path, sentence, target)
    assert code == "E0901" and says in message


@pytest.mark.parametrize("target", TARGETS)
def test_the_llama_family_is_not_refused(tmp_path: Path, target: Target) -> None:
    assert refusals(tmp_path, "model llama3_1_8b", target) == []
