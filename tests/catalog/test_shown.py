"""The catalog as users see it: `planc explain model`, and the page of the models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planc.catalog import config_types, families, model_names
from planc.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "models.md").read_text()


def explained(capsys: pytest.CaptureFixture[str], name: str, *options: str) -> str:
    assert main(["explain", "model", name, *options]) == 0
    return capsys.readouterr().out


def test_the_kinds_of_block_are_counted_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert "layers:  3 dense, 58 block\n" in explained(capsys, "deepseek_v3")
    assert "layers:  12 x (1 sliding, 1 block)\n" in explained(capsys, "gpt_oss_20b")
    assert "layers:  96 block\n" in explained(capsys, "gpt3_175b")
    counted = "layers:  23 mixer, 23 experts, 6 attention, in turn (--format json has each)\n"
    assert counted in explained(capsys, "nemotron_3_nano")


def test_experts_windows_and_tied_weights_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    out = explained(capsys, "gpt_oss_20b")
    assert "a token goes to 4 of 32" in out and "attention.core (window 128)" in out
    assert "4,187,440,704 of them used by a token" in out
    assert "tied:" in explained(capsys, "qwen3_4b") and "tied:" not in explained(capsys, "qwen3_8b")


@pytest.mark.parametrize("name", ["deepseek_v3", "llama3_8b"])
def test_json_has_all_of_it(capsys: pytest.CaptureFixture[str], name: str) -> None:
    facts = json.loads(explained(capsys, name, "--format", "json"))
    assert sum(run["layers"] for run in facts["layers"]) == facts["sizes"]["layers"]
    assert {run["kind"] for run in facts["layers"]} | {"first", "last"} == set(facts["sections"])
    assert facts["active_parameters"] <= facts["parameters"]
    assert set(facts["ops"]) == {op for ops in facts["sections"].values() for op in ops}


def test_the_page_lists_every_model() -> None:
    rows = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| ")][1:]
    listed = {row[0].removeprefix("| "): [n.strip("` |") for n in row[1].split(", ")] for row in rows}
    assert listed == {name: list(family.sizes) for name, family in families().items()}
    assert sorted(n for names in listed.values() for n in names) == sorted(model_names())
    assert all(f"`{kind}`" in PAGE for kind in config_types())
