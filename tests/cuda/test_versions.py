"""Programs for other versions of torch: what is written for them, where they refuse to run, and that they train there.

The versions themselves are in environments of their own (`make versions`); without them their tests are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from planc import PlanError, lower
from planc.backends.common.version import Difference
from planc.backends.cuda.versions import TORCH
from planc.checks import check_plan
from planc.cli import main
from planc.ir.version import Version, dotted, version_of
from planc.lowering import lower_plan
from tests.cuda.test_parity import BUDGET
from tests.cuda.worker import plan_of
from tests.launches import LAUNCHES, OTHER_TORCHES, VERSIONS, Row, case
from tests.rows import rows_of

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "backends" / "cuda" / "versions"
ENDS = (OTHER_TORCHES[0], OTHER_TORCHES[-1])
"""The oldest and the newest: CI has their environments."""


def text_of(name: str, version: Version | None = None) -> str:
    return lower_plan(check_plan(plan_of(name)), "cuda", version=version).text


def ways(name: str) -> list[str]:
    """Lines that differ from the pinned program of a layout, each with its version, but for the version itself."""
    pinned = text_of(name).splitlines()
    return [
        f"{dotted(v)} {line.strip()}"
        for v in TORCH.versions
        for line in text_of(name, v).splitlines()
        if line not in pinned and "ompiled " not in line
    ]


@pytest.mark.parametrize("name", ["fsdp", "fsdp_tp_sp", "1f1b", "ring", "ep_fsdp", "float8_rowwise", "compile_tp"])
def test_most_programs_are_the_same_for_every_version(name: str) -> None:
    assert ways(name) == []


def test_keys_are_gathered_by_the_name_of_the_version() -> None:
    assert {line[:4] for line in ways("cp")} == {"2.11", "2.12"}
    for version in TORCH.versions:
        text = text_of("cp", version)
        assert ("fc.all_gather_tensor_autograd(" in text) == (version < (2, 13))
        assert ("fc.all_gather_single_autograd(" in text) == (version >= (2, 13))


@pytest.mark.parametrize("name", ["zbv", "dualpipev"])
def test_a_rank_sends_itself_nothing_before_2_12(name: str) -> None:
    assert {line[:4] for line in ways(name)} == {"2.11"}
    assert "class Stage(PipelineStage):" in text_of(name, (2, 11))
    assert '"SEND_F", "WAIT_SEND_F"' in text_of(name)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("ep_etp_view", "a linear layer on a part of each sequence"),
        ("deepseek_tp_sp", "a linear layer on a part of each sequence"),
        ("rows_of_ffn", "a linear layer on a part of each sequence"),
        ("head_dim_stored", "divided inside a dimension"),
    ],
)
def test_what_2_11_cannot_do_is_refused(name: str, why: str) -> None:
    with pytest.raises(PlanError, match=why) as refused:
        text_of(name, (2, 11))
    assert [(d.code, d.help) for d in refused.value.diagnostics] == [("E0901", "--torch 2.12")]
    assert text_of(name, (2, 12)) == text_of(name).replace("for torch 2.13", "for torch 2.12")


def loaded(monkeypatch: pytest.MonkeyPatch, name: str, on: str, version: Version | None = None) -> list[str]:
    """Warnings of a program for one version while another says that it runs it."""
    monkeypatch.setattr(torch, "__version__", on)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        exec(compile(text_of(name, version), name, "exec"), {"__name__": name})
    return [str(w.message) for w in said]


def test_a_program_runs_quietly_where_it_was_tried_and_warns_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in TORCH.versions:
        assert loaded(monkeypatch, "fsdp", f"{dotted(version)}.0+cu130") == []
        assert loaded(monkeypatch, "fsdp", "2.16.0", version) == [
            f"compiled for torch {dotted(version)} and never tried on 2.16.0"
        ]


@pytest.mark.parametrize(
    ("name", "on", "why"),
    [
        ("fsdp", "2.9.0+cu128", "torch 2.9.0+cu128 is too old: on 2.9 tensor parallelism had wrong gradients"),
        ("cp", "2.12.1", "torch 2.12.1 has no all_gather_single_autograd: lower for it (--torch)"),
        ("zbv", "2.11.0", "torch 2.11.0 lets a rank send itself messages, and gloo cannot: lower for it (--torch)"),
        ("ep_etp_view", "2.11.0", "torch 2.11.0 cannot keep a sequence divided in a linear layer"),
        ("head_dim_stored", "2.11.0", "torch 2.11.0 cannot move a tensor that is divided inside a dimension"),
    ],
)
def test_a_program_stops_where_it_is_known_to_fail(
    monkeypatch: pytest.MonkeyPatch, name: str, on: str, why: str
) -> None:
    with pytest.raises(RuntimeError) as stopped:
        loaded(monkeypatch, name, on)
    assert str(stopped.value) == why


def test_the_program_for_a_version_runs_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cp", "zbv"):
        assert loaded(monkeypatch, name, "2.11.0", (2, 11)) == []


def test_every_difference_is_in_the_table_and_has_a_reference_and_a_test() -> None:
    files = [path for path in FOLDER.glob("*.py") if path.stem != "__init__"]
    assert len(files) == len(TORCH.differences)
    for difference in TORCH.differences:
        assert isinstance(difference, Difference) and difference.what and difference.handled
        assert difference.reference.startswith(("https://", "torch "))
        assert (ROOT / difference.shown_by).is_file()
        assert TORCH.versions[0] < difference.since <= TORCH.versions[-1], "nothing that is supported differs"


def test_a_version_is_asked_for_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lower", str(ROOT / "plans/tiny.plan"), "--target", "cuda", "--torch", "2.11"]) == 0
    assert "Compiled by planc for torch 2.11" in capsys.readouterr().out
    for words, said in (
        (["--target", "cuda", "--torch", "2.9"], "'2.9', only for 2.11, 2.12, 2.13, 2.14, 2.15"),
        (["--target", "cuda", "--torch", "newest"], "no programs are written for torch 'newest'"),
        (["--target", "xla", "--torch", "2.13"], "--torch is a version of another runtime than jax"),
        (["--target", "cuda", "--jax", "0.10"], "--jax is a version of another runtime than torch"),
    ):
        assert main(["lower", str(ROOT / "plans/tiny.plan"), *words]) == 2
        assert said in capsys.readouterr().err


def test_the_library_takes_a_version_too() -> None:
    plan = ROOT / "plans/tiny.plan"
    assert lower(plan, "cuda", version="2.13").text == lower(plan, "cuda").text
    with pytest.raises(ValueError, match=r"no programs are written for torch '2\.16'"):
        lower(plan, "cuda", version="2.16")


def test_training_writes_for_the_torch_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    for installed, version in (("2.11.0+cu130", (2, 11)), ("2.9.1", (2, 11)), ("2.16.0", (2, 15)), ("2.13.0", (2, 13))):
        monkeypatch.setattr(metadata, "version", lambda _, found=installed: found)
        assert TORCH.nearest_installed() == version
    assert lower_plan(check_plan(plan_of("cp")), "cuda", version="installed").backend.version == (2, 13)


def test_versions_are_compared_as_numbers() -> None:
    assert version_of("2.9.1") < version_of("2.11.0+cu130")
    assert [version_of(text) for text in ("", "2", "x.y", "2.123456")] == [None] * 4


def test_the_page_of_versions_is_the_table() -> None:
    """`make docs` has been run since a difference changed."""
    sys.path.insert(0, str(ROOT / "docs"))
    from generate import versions_page

    assert (ROOT / "docs/reference/versions.md").read_text() == versions_page(), "make docs"


# Runs on the other versions.

NOT_THERE = "the environment of torch {} is not there: make ends, or make versions"


def on(version: str) -> list[pytest.MarkDecorator]:
    """Marks of a test that needs the environment of a version: CI has the oldest and the newest."""
    there = (VERSIONS / f"torch-{version}" / ".ready").exists()
    tier = pytest.mark.long if version in ENDS else pytest.mark.slow
    return [pytest.mark.versions, tier, pytest.mark.skipif(not there, reason=NOT_THERE.format(version))]


SHORT = ("fsdp_tp_sp", "zbv", "cp", "ep_fsdp")
"""Layouts that every version trains: those whose mechanisms torch has changed, and the plain one."""


def runs() -> list[Any]:
    """The short layouts on each version."""
    return [case(f"torch-{v}", name, *on(v)) for v in OTHER_TORCHES for name in SHORT]


@pytest.mark.parametrize("name", runs())
def test_trains_as_one_process(name: str, row: Row) -> None:
    assert row["dead"] == [], "a reference gradient is zero: the comparison would prove nothing"
    assert max(row["gradient"]) <= BUDGET, row["where"]
    assert max(row["loss"], row["norm"], row["evaluated"]) <= BUDGET
    assert row["collectives"] == []


PROGRAMS = tuple(sorted(p.name.partition(".")[0] for p in (ROOT / "plans/goldens").glob("*.cuda.py")))
SMALL, LARGE = PROGRAMS[-1:], PROGRAMS[:-1]


def runs_of_programs() -> list[Any]:
    """(version, programs to trace): the small one in CI, the large ones by `make versions`, which takes minutes."""
    small = [pytest.param(v, SMALL, id=v, marks=on(v)) for v in OTHER_TORCHES]
    return small + [pytest.param(v, LARGE, id=f"{v}-large", marks=[*on(v), pytest.mark.slow]) for v in OTHER_TORCHES]


@pytest.mark.launch
@pytest.mark.parametrize(("version", "traced"), runs_of_programs())
def test_every_committed_program_loads_and_moves_what_is_predicted(
    version: str, traced: tuple[str, ...], tmp_path: Path
) -> None:
    python = VERSIONS / f"torch-{version}" / "bin" / "python"
    done = subprocess.run(
        [str(python), str(ROOT / "tests/cuda/golden_programs.py"), *traced],
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = rows_of(done.stdout)
    assert tuple(row["name"] for row in rows) == (*PROGRAMS, "1f1b")
    assert tuple(row["name"] for row in rows if row["traced"]) == (*traced, "1f1b")
    assert [(row["said"], row["unlike"]) for row in rows] == [([], [])] * len(rows), json.dumps(rows)


def test_every_environment_has_a_file_of_its_pin() -> None:
    for version in OTHER_TORCHES:
        (pin,) = [line for line in (ROOT / f".ci/pins/torch-{version}.txt").read_text().splitlines() if line[0] != "#"]
        assert pin.startswith(f"torch=={version}.") and version_of(version) in TORCH.tried
    assert {version_of(v) for v in OTHER_TORCHES} | {TORCH.pinned} == set(TORCH.tried)
    assert {f"torch-{v}" for v in OTHER_TORCHES} <= set(LAUNCHES)
