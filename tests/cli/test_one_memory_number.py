"""One question, one answer: the memory of a plan on a target is one number, whichever command is asked."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from planc.backends.cuda.audit.run import predicted_bytes as predicted_by_cuda_audit
from planc.backends.xla.audit.run import predicted_bytes as predicted_by_xla_audit
from planc.cli import main
from planc.cli.commands.train import predicted_figures
from planc.costing.memory.peak import GIB
from planc.driver import check, cost, examine, load
from planc.ir.target import AnyTarget
from planc.picture.units import gib
from planc.trainer.preset.load import load_preset
from tests.launches import sampled
from tests.plans import BUNDLED, FIELD, ROOT, propagated

PRESET_PLANS = sorted((ROOT / "plans" / "presets").glob("*.plan"))
PRESETS = sorted((ROOT / "plans" / "presets").glob("*.toml"))
PLANS = [*BUNDLED, *FIELD, *PRESET_PLANS]
AUDITED_LLAMA3_70B_V5P_GIB = {("unfused", 1): 16.44, ("splash", 1): 10.47, ("splash", 4): 21.74}
"""`peak_memory_in_bytes` of libtpu 0.0.42.1 for the step of llama3_70b_v5p, by kernel and sequences at once: with one,
before the program had options for its compiler (docs/measured/audit-tpu.md)."""


def answered(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    main(list(words))
    return capsys.readouterr().out


@pytest.mark.parametrize("path", sampled(PLANS, 4, 2), ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_the_text_shows_that_number(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = check(path)
    assert report.memory is not None
    parts = report.memory.per_device_gib
    text = answered(capsys, "check", str(path))
    table = text.split("GiB on each device")[1].split("fullest at")[0]
    rows = re.findall(r"^(\d+) +\d+ +([\d.]+) ", table, re.MULTILINE)
    shown = [gib(stage.per_device_gib.total) for stage in report.memory.stages]
    assert [total for _, total in rows] == shown and gib(parts.total) in shown
    assert f"target {report.target or 'none'}:" in text


@pytest.mark.parametrize("target", ["cuda", "xla", "none"])
@pytest.mark.parametrize("path", sampled([*BUNDLED, *FIELD], 4, 2), ids=lambda p: p.stem)
def test_a_named_target_has_one_number_too(path: Path, target: AnyTarget) -> None:
    """From the file, and from the plan that a preset embeds."""
    report = check(path, target=target)
    if report.memory is None:
        refused = next(t for t in report.targets if t.target == target)
        assert not refused.lowers and {d.code for d in report.diagnostics} == {"E0901"}
        return
    plan = load(path, target="" if target == "none" else target)
    assert cost(plan, target=target).memory == report.memory
    if target != "none":
        assert predicted_figures(plan, target)["memory_gib"] == report.memory.per_device_gib.total


@pytest.mark.parametrize("path", sampled(PLANS, 4, 2), ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_an_audit_compares_the_tensors_of_that_number(path: Path) -> None:
    """The total less the communicators and the reserve, which no tensor is in; both are named parts."""
    report = check(path)
    assert report.memory is not None
    tensors = [(p.total - p.comm_buffers - p.reserve) * GIB for p in (s.per_device_gib for s in report.memory.stages)]
    if report.target == "xla":
        sharded = propagated(load(path, target="xla"))
        assert math.isclose(predicted_by_xla_audit(sharded), max(tensors), rel_tol=1e-9)
    elif report.target == "cuda":
        sharded = propagated(load(path, target="cuda"))
        assert predicted_by_cuda_audit(sharded) == pytest.approx(tensors, rel=1e-9)


@pytest.mark.parametrize("path", PRESETS, ids=lambda p: p.stem)
def test_a_preset_predicts_what_its_plan_s_check_shows(path: Path) -> None:
    preset = load_preset(path)
    report = check(preset.plan)
    assert report.target is not None and report.memory is not None
    shown = report.memory.per_device_gib.total
    assert predicted_figures(preset.plan, report.target)["memory_gib"] == shown
    source = next(p for p in (path.with_suffix(".plan"), ROOT / "plans" / f"{path.stem}.plan") if p.exists())
    assert check(source, set=preset.plan.set).memory == report.memory


SPACE = """plan space
model   {model}
batch   64 x 4096 tokens microbatch 1
cluster {cluster}
mesh    fsdp ? > tp ?
use     fsdp over fsdp
use     tp   over tp
compute   fp32
recompute ?
"""


@pytest.mark.parametrize("cluster", ["2 x h100_node", "tpu_v5p(2x2x4)"])
@pytest.mark.parametrize("words", [(), ("--target", "cuda"), ("--target", "xla"), ("--target", "none")])
def test_a_search_says_what_a_check_of_its_plans_says(
    tmp_path: Path, cluster: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    space = tmp_path / "space.plan"
    space.write_text(SPACE.format(model="llama3_8b", cluster=cluster))
    found = json.loads(answered(capsys, "search", str(space), *words, "--format", "json", "-o", str(tmp_path / "best")))
    for i, candidate in enumerate(found["best"], 1):
        written = str(tmp_path / "best" / f"space_{i}.plan")
        report = json.loads(answered(capsys, "check", written, *words, "--format", "json"))
        assert report["target"] == found["target"]
        assert rounded(report["memory"]["per_device_gib"]["total"]) == rounded(candidate["memory_gib"])
        assert rounded(report["step"]["time_s"]) == rounded(candidate["time_s"])
    assert len(found["best"]) == 5


def rounded(number: float) -> float:
    """Without its last digits: with no target, a search adds in another order."""
    return float(f"{number:.12g}")


@pytest.mark.parametrize(("kernel", "sequences"), AUDITED_LLAMA3_70B_V5P_GIB)
def test_the_number_is_the_compiler_s(kernel: str, sequences: int, tmp_path: Path) -> None:
    path = tmp_path / "llama3_70b_v5p.plan"
    plan = (ROOT / "plans" / "llama3_70b_v5p.plan").read_text().replace("microbatch 4", f"microbatch {sequences}")
    path.write_text(plan + f"attention.core as {kernel}\n")
    report, seen_gib = check(path), AUDITED_LLAMA3_70B_V5P_GIB[kernel, sequences]
    assert report.target == "xla" and report.memory is not None
    assert abs(report.memory.per_device_gib.tensors / seen_gib - 1) < 0.1
    assert abs(report.memory.per_device_gib.total / seen_gib - 1) < 0.1


def test_targets_differ_where_their_programs_do(tmp_path: Path) -> None:
    """Attention without its kernel on XLA: scores take memory and time that torch's kernel does not."""
    path = tmp_path / "llama3_70b_v5p.plan"
    plan = (ROOT / "plans" / "llama3_70b_v5p.plan").read_text()
    path.write_text(plan.replace("expect", "on xla: attention.core as unfused\nexpect", 1))
    of = {target: examine(path, target=target).costed for target in ("cuda", "xla", "none")}
    gibs = {t: c.memory.per_device_gib.total for t, c in of.items() if c}
    seconds = {t: c.step.compute_s + c.step.recompute_s for t, c in of.items() if c}
    assert gibs["xla"] > 1.2 * gibs["none"] and seconds["xla"] > 1.2 * seconds["none"]
    assert math.isclose(seconds["cuda"], seconds["none"]) and gibs["cuda"] != gibs["none"]
