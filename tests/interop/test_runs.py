"""One table says what a framework can run: a check finds what is not in it, an export refuses it, a search leaves it
out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from planc.diag.errors import PlanError
from planc.driver import examine, search
from planc.frameworks import NAMES
from planc.frameworks.runs import ROWS, WORDS, lacks
from planc.interop import exporting
from planc.interop.exporting import export_plan
from planc.interop.systems import systems
from planc.ir.plan import Plan
from planc.language.build import build_file
from planc.language.verbs.overlap import METHODS
from planc.pipeline.schedules import schedules
from tests.random_plans.promises import write
from tests.random_plans.run import drawn_of

WRITTEN = tuple(name for name, system in systems().items() if system.text is not None and name in NAMES)
HEAD = """plan one
model llama3_8b
batch 64 x 4096 tokens microbatch 1
cluster 1 x h100_node
compute bf16 reduce fp32
realise as {framework}
"""
DIVIDED = {"megatron": "zero1", "bridge": "zero1", "deepspeed": "zero1"}
NARROW = (
    *("float8", "float8(rowwise)", "float8(tensorwise)", "float8(blockwise)", "float8(tile = 32)"),
    *("float8(tile = 128)", "int8", "float4"),
)
FORMS = ("none", "blocks", "blocks every 2 layers", "attention.core", "blocks except attention.core", "ffn.swiglu")
KERNELS = ("flash", "triton", "unfused", "cudnn", "efficient", "flex", "splash")


def variations() -> Iterator[str]:
    """Every word of every decision in the table, in a sentence each."""
    yield from (f"split layers over pp as {name}" for name in schedules() if name != "csv")
    yield from (f"quantize attention, ffn as {method}" for method in NARROW)
    yield from (f"recompute {form}" for form in FORMS)
    yield from (f"overlap data as {method}" for method in METHODS)
    yield from (f"offload {what} to host" for what in ("params", "optimizer", "params, optimizer"))
    yield from (f"attention.core as {kernel}" for kernel in KERNELS)
    yield from ("optimizer adamw", "optimizer muon", "compile blocks", "compile loss", "compile blocks, loss")


def plan_with(framework: str, sentence: str, folder: Path) -> Plan:
    mesh = "mesh pp 2 > data 4" if sentence.startswith("split") else "mesh data 8"
    path = folder / "one.plan"
    use = f"use {DIVIDED.get(framework, 'fsdp')} over data"
    path.write_text("\n".join((HEAD.format(framework=framework).rstrip(), mesh, use, sentence)) + "\n")
    plan = build_file(path).plan
    assert plan is not None
    return plan


def refused(plan: Plan, to: str) -> list[str]:
    """The messages of an export that is refused; none where a file is written."""
    try:
        export_plan(plan, to)
    except PlanError as error:
        return [d.message for d in error.diagnostics]
    return []


@pytest.mark.parametrize("name", WRITTEN)
def test_its_file_cannot_say_what_it_lacks(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor without the table: what is written is read again, and says another plan."""
    plans = [plan_with(name, sentence, tmp_path) for sentence in variations()]
    lacking = [plan for plan in plans if [*lacks(plan, name)]]
    assert len(lacking) >= 5 and all("cannot run" in " ".join(refused(plan, name)) for plan in lacking)
    lacking = [plan for i, plan in enumerate(lacking) if plan.split or i % 2 == 0]  # each takes some milliseconds
    monkeypatch.setattr(exporting, "lacks", lambda plan, to: iter(()))
    assert [plan.to_json() for plan in lacking if not refused(plan, name)] == []


def test_a_check_finds_what_an_export_refuses(tmp_path: Path) -> None:
    """On drawn plans: the same sentences, for the same reason."""
    found = 0
    for seed in range(0, 36, 3):
        drawn = drawn_of(seed)
        kept = tuple(s for s in drawn.sentences if not s.startswith("realise"))
        for name in WRITTEN[seed % 2 :: 2]:
            path = write(replace(drawn, sentences=(*kept, f"realise as {name}")), tmp_path)
            examined = examine(path, target="none", targets=())
            if examined.plan is None:
                continue
            said = {_reason(d.message) for d in examined.report.diagnostics if d.code == "W0907"}
            table = {_reason(m) for m in refused(examined.plan, name) if "cannot run" in m}
            assert said == table, (name, drawn.text)
            found += len(said)
    assert found >= 10


def _reason(message: str) -> str:
    """Without the title, which an export says in the words of its system."""
    return message.partition(" cannot run ")[2]


def test_a_search_keeps_to_what_the_framework_has(tmp_path: Path) -> None:
    """It ranks no layout that a check finds fault with, and counts those that it leaves out."""
    path = tmp_path / "space.plan"
    for name in ("megatron", "deepspeed", "torchtitan"):
        text = HEAD.format(framework=name) + "mesh pp 2 > data 4\nuse zero1 over data\nsplit layers over pp as ?\n"
        path.write_text(text.replace("llama3_8b", "llama3_8b(layers = 8)") + "recompute ?\n")
        found = search(path, top=100)
        assert found.best
        for candidate in found.best:
            path.with_name("best.plan").write_text(candidate.text)
            codes = {d.code for d in examine(path.with_name("best.plan"), targets=()).report.diagnostics}
            assert "W0907" not in codes, candidate.text
        left_out = sum(r.layouts for r in found.refusals if r.code == "W0907")
        assert bool(left_out) == (name != "torchtitan")


def test_rows_are_about_frameworks_and_words_that_exist() -> None:
    for row in ROWS:
        assert set(row.frameworks) <= {*NAMES} and row.what in WORDS and row.source and row.why
    pairs = [(name, row.what) for row in ROWS for name in row.frameworks]
    assert len({*pairs}) == len(pairs)
