"""The search for a generator's layout: every layout of the space, judged as `planc check` does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planc.cli import main
from planc.diag.errors import PlanError
from planc.driver.serve_search import ServeFound, search_serve
from planc.driver.serving import check_serve
from tests.plans import ROOT

TRAINER = (ROOT / "plans" / "serve" / "qwen3_8b.plan").read_text()
FREE = """serve free of "qwen3_8b.plan"
cluster   1 x h100_node
mesh      dp ? > tp ?
use       ddp over dp
use       tp over tp
requests  64 x 1024 + 4096 tokens
expect    cache >= 900 k tokens
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve")
    (folder / "qwen3_8b.plan").write_text(TRAINER)
    (folder / "free.plan").write_text(FREE)
    return folder / "free.plan"


@pytest.fixture(scope="module")
def found(file: Path) -> ServeFound:
    return search_serve(file)


def test_layouts_are_those_that_a_check_accepts(file: Path, found: ServeFound) -> None:
    fitting = {}
    for tp in (1, 2, 4, 8):
        text = FREE.replace("dp ? > tp ?", f"dp {8 // tp} > tp {tp}")
        (file.parent / "one.plan").write_text(text)
        report = check_serve(file.parent / "one.plan")
        if report.ok:
            assert report.sync is not None and report.decode_s is not None and report.replicas is not None
            fitting[text] = report.sync.seconds, report.replicas * 64 / report.decode_s
    assert (found.decided, found.fitting, len(found.best)) == (4, len(fitting), len(fitting))
    assert 0 < len(fitting) < 4, "some layout fits, and some has too small a cache"
    got = {" ".join(c.text.split()): (c.sync.seconds, c.tokens_per_s) for c in found.best}
    assert got == {" ".join(text.split()): figures for text, figures in fitting.items()}
    assert sum(r.layouts for r in found.refusals) == 4 - len(fitting)


def test_the_front_comes_first(found: ServeFound) -> None:
    front = [c for c in found.best if c.on_front]
    assert found.best[: len(front)] == tuple(front)
    for one in found.best:
        better = [
            c
            for c in found.best
            if c is not one and c.sync.seconds <= one.sync.seconds and (c.tokens_per_s or 0) >= (one.tokens_per_s or 0)
        ]
        assert one.on_front == (not better)


def test_the_command_writes_plans_with_all_that_they_read(
    file: Path, found: ServeFound, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["search", str(file), "--top", "1", "-o", str(tmp_path / "out"), "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["fitting"] == found.fitting and len(said["best"]) == 1
    assert check_serve(tmp_path / "out" / "free_1.plan").ok
    assert main(["search", str(file), "--sequences", "8"]) == 2
    assert "is for training plans" in capsys.readouterr().err


def test_what_is_wrong_with_every_layout_is_raised(file: Path) -> None:
    (file.parent / "wrong.plan").write_text(FREE.replace("requests", "reqests"))
    with pytest.raises(PlanError):
        search_serve(file.parent / "wrong.plan")
