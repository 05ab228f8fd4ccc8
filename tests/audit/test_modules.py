"""Classes of transformers divided over 64 fake devices: their own code moves what the plan predicts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from planc.backends.cuda.audit import run as auditing
from planc.cli import main
from planc.ir.audit import AuditOptions, differences
from tests.audit.module_cases import CASES, QUICK, plan_of
from tests.cuda.families import config_of

pytest.importorskip("transformers")
PEAK_WITHIN = 0.05
FASTEST = ("gpt2:tp",)
"""Biases beside divided weights, and an embedding with code of its own."""


def moves_what_was_predicted(case: str) -> None:
    plan, source = plan_of(case)
    found = auditing.audit(plan, AuditOptions(source=source))
    assert differences(found.rows) == [] and found.unparsed == ()
    assert found.traced_devices == 64
    assert sum(row.observed.count for row in found.rows) > 10
    assert abs(found.memory[0].relative) <= PEAK_WITHIN
    assert all(abs(m.relative) <= 0.02 for m in found.matmuls)  # an eager class stores its scores


@pytest.mark.launch
@pytest.mark.parametrize("case", [c if c in FASTEST else pytest.param(c, marks=pytest.mark.long) for c in QUICK])
def test_a_class_moves_what_was_predicted(case: str) -> None:
    moves_what_was_predicted(case)


@pytest.mark.launch
@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in CASES if c not in QUICK])
def test_every_class_moves_what_was_predicted(case: str) -> None:
    moves_what_was_predicted(case)


@pytest.mark.launch
def test_the_command_traces_a_users_module_if_it_may_run_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config_of("granite").to_json_file(tmp_path / "config.json")
    plan = tmp_path / "own.plan"
    plan.write_text(
        'plan own\nmodel from transformers "config.json"\nbatch 8 x 24 tokens\ncluster 4 x cpu_local\n'
        "mesh fsdp 4\ncompute fp32\nuse fsdp over fsdp\n"
    )
    argv = ["audit", str(plan), "--target", "cuda", "--format", "json"]
    assert main(argv) == 1 and "E0118" in capsys.readouterr().out  # nothing runs that was not allowed
    assert main([*argv, "--allow-code"]) == 0, sys.stderr
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] and found["rows"]
    assert main(argv) == 1 and "E0901" in capsys.readouterr().out  # the graph is kept now; the module is not run
