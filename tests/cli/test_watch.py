"""`planc check --watch`: checked again when a plan, or a file that it imports, changes; Ctrl-C ends it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from planc.cli import main
from planc.cli.commands import check
from tests.plans import ROOT

TINY = (ROOT / "plans" / "tiny.plan").read_text()


def watched(path: Path, monkeypatch: pytest.MonkeyPatch, *changes: Callable[[], object]) -> int:
    """The exit status of a watch during which the changes are made, one each time that it sleeps, and then Ctrl-C."""
    left = list(changes)

    def sleep(seconds: float) -> None:
        assert seconds == check.WATCH_S
        if not left:
            raise KeyboardInterrupt
        left.pop(0)()

    monkeypatch.setattr(time, "sleep", sleep)
    return main(["check", "--watch", "--brief", str(path)])


def test_a_change_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A change of the plan or of the hardware file that it imports; and the plan's end."""
    hardware = (ROOT / "plans" / "hardware" / "cpu_local.plan").read_text()
    (tmp_path / "own.plan").write_text(hardware.replace("cpu_local", "own"))
    plan = tmp_path / "a.plan"
    plan.write_text(TINY.replace("model ", 'import "own.plan"\nmodel ').replace("cpu_local", "own"))
    slower = (tmp_path / "own.plan").read_text().replace("50 GFLOP/s", "25 GFLOP/s")
    assert slower != (tmp_path / "own.plan").read_text()
    status = watched(
        plan, monkeypatch, lambda: None, lambda: (tmp_path / "own.plan").write_text(slower), lambda: plan.unlink()
    )
    said = capsys.readouterr()
    first, second, third = [line for line in said.out.splitlines() if "step" in line or "error[" in line]
    assert status == 130 and first.startswith("tiny: 0.3") and second != first and "E0104" in third
    assert said.err.count("planc check: watching") == 3
