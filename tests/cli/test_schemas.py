"""Every JSON answer agrees with the published schema of its format. Nothing here starts a process."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from planc.calibration.intervals import Ratios, Subject
from planc.calibration.probes import MeasuredProbe, predicted_s
from planc.cli import main, schemas
from planc.cli.commands import calibrate
from planc.driver import load
from planc.ir.audit import Audit, AuditRow, AxisWire, CompilerReport, LargestProduct, MatmulFlops, PeakMemory, Total
from planc.ir.probe import Probe
from planc.ir.target import Target
from planc.searching import search as found_layouts
from planc.searching.space import Space
from planc.trainer.checkpoint.manifest import File, Manifest, Position, Stored, StoredBox
from planc.trainer.measure import coordinator
from planc.trainer.run.dry_run import DryRun
from tests.calibration.test_fit_machine import machine
from tests.cli.schemas import valid, valid_text
from tests.interop.scripts import SCRIPT
from tests.lab.bench import accuracy as accuracy_bench
from tests.lab.bench import large, published, search, speed
from tests.lab.published.accuracy import Accuracy, Errors, Refused
from tests.lab.published.eight_runs import EightRuns
from tests.lab.published.ranking import Ranking
from tests.lab.published.residuals import Coverage, Residual, Spread
from tests.lab.published.sweep import Sweep
from tests.plans import BUNDLED, FIELD, ROOT
from tests.trainer.test_crosscheck import receipt

FILES = {
    "tiny": (ROOT / "plans" / "tiny.plan").read_text(),
    "other": (ROOT / "plans" / "tiny.plan").read_text().replace("fsdp 2 > tp 2", "tp 2 > fsdp 2"),
    "bad": "plan bad\nmodle llama_tiny\n",
    "serve": 'serve served of "tiny.plan"\nmesh dp 2 > tp 2\nuse ddp over dp\nuse tp over tp\ncache 4 k tokens\n',
    "serve_free": 'serve f of "tiny.plan"\nmesh dp ?>tp ?\nuse ddp over dp\nuse tp over tp\nrequests 8 x 9 + 9 tokens',
    "serve_other": 'serve served of "tiny.plan"\nmesh dp 4\nuse ddp over dp\nrequests 8 x 64 + 64 tokens\n',
    "no_fit": (ROOT / "plans" / "tiny.plan").read_text().replace("llama_tiny", "llama3_405b"),
    "free": "plan free\nmodel llama3_8b(layers = 8)\nbatch 32 x 4096 tokens microbatch 1\ncluster 1 x h100_node\n"
    "mesh fsdp ? > tp ?\ncompute fp32\nuse fsdp over fsdp\nuse tp over tp\n",
    "too_large": "plan free\nmodel llama3_405b\nbatch 8 x 4096 tokens microbatch 1\ncluster 1 x h100_node\n"
    "mesh fsdp ? > tp ?\ncompute fp32\nuse fsdp over fsdp\nuse tp over tp\n",
    "spaced": "plan   spaced\n",
    "compiled": (ROOT / "plans" / "tiny.plan").read_text() + "compile blocks\n",
    "on_gpus": "plan on_gpus\nmodel llama3_8b\nbatch 16 x 4096 tokens microbatch 1\ncluster 1 x h100_node\n"
    "mesh dp 2 > tp 4\nuse zero1 over dp\nuse tp over tp\nuse sp over tp\ncompute bf16 reduce fp32\n"
    "recompute whole_blocks\n",
}
ANSWERS = [
    # format, exit status, words
    ("planc.report/1", 0, "check tiny.plan"),
    ("planc.report/1", 1, "check tiny.plan bad.plan"),
    ("planc.report/1", 1, "check no_fit.plan"),
    ("planc.report/1", 2, "check absent.plan"),
    ("planc.report/1", 0, "cost tiny.plan --target none"),
    ("planc.explain/1", 0, "cost tiny.plan --explain"),
    ("planc.report/1", 1, "cost bad.plan --explain"),
    ("planc.search/1", 0, "search free.plan"),
    ("planc.search/1", 1, "search too_large.plan"),
    ("planc.diagnostics/1", 1, "search bad.plan"),
    ("planc.diff/1", 1, "diff tiny.plan other.plan"),
    ("planc.diff/1", 1, "diff tiny.plan no_fit.plan"),
    ("planc.diff/1", 0, "diff tiny.plan tiny.plan"),
    ("planc.diagnostics/1", 1, "diff tiny.plan bad.plan"),
    ("planc.sweep/1", 0, "sweep tiny.plan --over batch=7,8,16"),
    ("planc.diagnostics/1", 1, "sweep bad.plan --over batch=8"),
    ("planc.program/1", 0, "lower tiny.plan --target xla"),
    ("planc.program/1", 0, "lower tiny.plan --target cuda --launch slurm"),
    ("planc.diagnostics/1", 1, "lower bad.plan --target cuda --emit json"),
    ("planc.expand/1", 0, "expand tiny.plan"),
    ("planc.expand/1", 1, "expand bad.plan"),
    ("planc.init/1", 0, "init llama3_8b --cluster h100_node"),
    ("planc.diagnostics/1", 1, "init llama3_7b --cluster h100_node"),
    ("planc.graph/1", 0, "graph tiny.plan"),
    ("planc.place/1", 0, "place tiny.plan"),
    ("planc.what_if/1", 0, "check tiny.plan --with 'links cpu_memory at 50 %'"),
    ("planc.place/1", 0, "place other.plan"),
    ("planc.diagnostics/1", 1, "place bad.plan"),
    ("planc.serve/1", 0, "sync serve.plan"),
    ("planc.serve/1", 0, "check serve.plan"),
    ("planc.serve_search/1", 0, "search serve_free.plan"),
    ("planc.diff/1", 1, "diff serve.plan serve_other.plan"),
    ("planc.fmt/1", 1, "fmt --check spaced.plan"),
    ("planc.import/1", 0, "import run.sh --cluster h100_node"),
    ("planc.import/1", 1, "import run.sh"),
    ("planc.report/1", 0, "check run.sh --cluster h100_node"),
    ("planc.export/1", 0, "export on_gpus.plan --to megatron"),
    ("planc.diagnostics/1", 1, "export compiled.plan --to megatron"),
    ("planc.page/1", 0, "explain"),
    *(("planc.page/1", 0, f"explain {name}") for name in ("E0101", "model mixtral_8x7b", "verb mesh", "layout fsdp")),
    *(("planc.page/1", 0, f"explain {name}") for name in ("chip h100", "node h100_node", "1f1b", "interleaved_1f1b")),
    ("planc.schemas/1", 0, "explain --schema"),
    ("planc.embed/1", 0, "embed tiny.plan preset.toml"),
    ("planc.diagnostics/1", 1, "embed bad.plan preset.toml"),
    ("planc.trace/1", 0, "report --trace tiny.plan -o trace.json"),
    ("planc.completion/1", 0, "completion zsh"),
    ("planc.snapshot/1", 0, "report --memory-snapshot tiny.plan -o step.pickle"),
    ("planc.report.plan/1", 0, "report tiny.plan"),
    ("planc.report.plan/1", 1, "report bad.plan"),
    ("planc.report.view/1", 0, "report tiny.plan --view memory"),
    ("planc.page_file/1", 0, "report tiny.plan -o tiny.html"),
    ("planc.page_file/1", 1, "diff tiny.plan other.plan -o page.json"),
    ("planc.page_file/1", 0, "search free.plan -o page.json"),
    ("planc.accuracy/1", 0, "report --accuracy a.json b.json"),
    ("planc.crosscheck/1", 0, "crosscheck a.json a.json"),
    ("planc.crosscheck/1", 1, "crosscheck a.json b.json"),
    ("planc.crosscheck/1", 1, "crosscheck a.json seeded.json"),
    ("planc.diagnostics/1", 2, "crosscheck a.json bad.plan"),
    ("planc.portability/1", 0, "audit --portability llama"),
    ("planc.diagnostics/1", 1, "audit bad.plan --target cuda"),
    ("planc.dry_run/1", 0, "train preset.toml --target cuda --dry-run"),
    ("planc.dry_run/1", 0, "train preset.toml --target cuda --dry-run --single"),
    ("planc.diagnostics/1", 2, "train absent.toml --target cuda"),
    ("planc.weights/1", 0, "weights preset.toml kept"),
    ("planc.calibration/1", 0, "calibrate --target cuda -o mine.plan"),
    ("planc.bench/1", 0, "bench"),
    ("planc.bench.accuracy/1", 0, "bench accuracy"),
    ("planc.bench.calibrated/1", 0, "bench calibrated --hardware cpu_local.plan --target xla"),
    ("planc.bench.accelerator/1", 0, "bench accelerator --dry"),
    ("planc.bench.accelerator/1", 1, "bench accelerator --minutes 0 --state kept"),
    ("planc.bench.published/1", 0, "bench published"),
    ("planc.bench.saves/1", 0, "bench saves"),
    ("planc.bench.search/1", 0, "bench search"),
    ("planc.bench.large/1", 0, "bench large"),
]
ERRORS = Errors("all", 3, 0.1, 0.2, -0.05)
SPREAD = Spread(
    (Ratios("dense", 12, 0.9, 1.2, ("h100",), ("megatron",)),),
    (Coverage("all", 12, 0.8, 0.75, 0.7),),
    (Residual("a", Subject("h100", "dense", "megatron"), "b/c", 0.05),),
)
ACCURACY = Accuracy(
    **dict.fromkeys(
        ("held_out", "in_use", "not_fitted", "memory", "allocated", "closed_forms", "validation"), (ERRORS,)
    ),
    one_flag=ERRORS,
    left_out={},
    refused=(Refused("all", 5, 2, 1, 0, 0),),
    sweep=ERRORS,
    rankings=(Ranking(5, 0.9, 0.02),),
    traces=Sweep(4, 2, 0.1, 1, 0.05, 3, 2.5, 2),
    dropped={"no step time": 2},
    step_intervals=SPREAD,
    memory_intervals=SPREAD,
    from_eight=(EightRuns("all", 8, 0.07, 0.2, 0.04, 0.1),),
    order_margin=0.1,
)
PAGES = {
    "planc.report.diff/1": "diff tiny.plan other.plan",
    "planc.report.search/1": "search free.plan",
    "planc.report.serve/1": "report serve.plan",
}
"""Formats of pages as data, and the commands that write them."""
BUILT = {
    *PAGES,
    "planc.clusters/1",
    "planc.report.clusters/1",
    "planc.report.run/1",
    "planc.experiment/1",
    "planc.audit/1",
    "planc.receipt/1",
    "planc.checkpoint/1",
    "planc.plan/1",
}
"""Formats of files, and of commands that start processes: their values are made here."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with plans, a preset and receipts."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / f"{name}.plan").write_text(text)
    (tmp_path / "run.sh").write_text(SCRIPT)
    (tmp_path / "preset.toml").write_text((ROOT / "plans" / "presets" / "tiny.toml").read_text())
    (tmp_path / "cpu_local.plan").write_text((ROOT / "plans" / "hardware" / "cpu_local.plan").read_text())
    figures = {"step_time_s": 0.4, "memory_gib": 1.0}
    gradients = {**receipt().measured.to_json(), "first_gradient_norms": {"tok_embeddings": 1.0}}
    receipt(predicted=figures, measured=gradients).write("a.json")
    gradients["first_gradient_norms"] = {"tok_embeddings": 2.0}
    receipt((5.5, 9.0, 9.0), predicted=figures, measured=gradients).write("b.json")
    receipt(seed=1).write("seeded.json")
    return tmp_path


@pytest.fixture
def on_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that would start processes or take long get small figures instead."""

    def measure(
        target: Target, devices: int, probes: Sequence[Probe] = (), plans: Sequence[Path] = (), **_: Any
    ) -> coordinator.Measurement:
        steps = {p.stem: calibrate.step_of(load(p), 1.0, target).predicted_s(machine()) for p in plans}
        probed = tuple(MeasuredProbe(probe=p, seconds=predicted_s(p, machine())) for p in probes)
        return coordinator.Measurement(probed, {name: (2 * s, s) for name, s in steps.items()})

    saves = {"synchronous_s": 0.2, "asynchronous_s": 0.1, "step_s": 0.3, "step_while_saving_s": 0.4}
    traced = DryRun(4, 2, ["2 microbatches"], 1.5, {"operations": 7, "axes": ["fsdp"]})
    replaced: list[tuple[Any, str, Any]] = [
        (coordinator, "measure", measure),
        (calibrate, "STEPPED", {"dp_short": calibrate.STEPPED["dp_short"]}),
        (speed, "_paired", lambda *_: (2.0, 1.0)),
        (speed, "_costing", lambda *_, **__: 1.0),
        (speed, "_median", lambda *_: 1.0),
        (accuracy_bench, "accuracy", lambda *_, **__: ACCURACY),
        (published, "beside", lambda _: published.Beside(2.0, 70.0, 1.9, 69.0, "fsdp 8")),
    ]
    for module, name, function in replaced:
        monkeypatch.setattr(module, name, function)
    monkeypatch.setattr(search, "SPACES", {"free": None})
    monkeypatch.setattr(search, "_fastest_run", lambda *_: (found_layouts(Space(Path("free.plan"))), 0.5))
    monkeypatch.setattr(large, "_cpu_s", lambda *_: 1.0)
    monkeypatch.setattr(large, "KINDS", {"blank lines": lambda _: "\n"})
    monkeypatch.setattr(search, "_rate", lambda *_: 100.0)
    monkeypatch.setattr("tests.lab.measure.checkpoint_bench.measure", lambda *_, **__: saves)
    monkeypatch.setattr("planc.trainer.run.dry_run.dry_run", lambda *_: (traced, ""))
    monkeypatch.setattr("planc.trainer.checkpoint.export_weights.export", lambda *_, **__: Path("step_2"))


@pytest.mark.usefixtures("folder", "on_paper")
@pytest.mark.parametrize(("format", "status", "words"), ANSWERS, ids=[words for _, _, words in ANSWERS])
def test_an_answer_agrees_with_its_schema(
    format: str, status: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*shlex.split(words), "--format", "json"]) == status
    assert valid_text(capsys.readouterr().out) == format


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("format", PAGES)
def test_a_page_agrees_with_its_schema(format: str) -> None:
    assert main([*PAGES[format].split(), "-o", "page.json"]) in (0, 1)
    assert valid_text(Path("page.json").read_text()) == format


def total(count: int) -> Total:
    return Total(count, 1024 * count)


ROWS = (AuditRow(op="all_gather", axis="fsdp", dtype="bf16", stage=0, predicted=total(4), observed=total(3)),)
COMPILED = CompilerReport(topology="v5p:2x2x1", fits=True, predicted_to_fit=True, capacity_bytes=1e11)


@pytest.mark.parametrize("compiler", [None, COMPILED, replace(COMPILED, on_torus=True, versions={"jax": "0.8"})])
def test_an_audit_agrees_with_its_schema(compiler: CompilerReport | None) -> None:
    memory = (PeakMemory(stage=0, predicted_bytes=1e9, observed_bytes=1.1e9),)
    wire = tuple(AxisWire(axis=axis, predicted_bytes=9, observed_bytes=n) for axis, n in (("fsdp", 8), ("tp", 0)))
    largest = (LargestProduct(flops=8, result="bf16[2, 2]", operation=""),)
    matmuls = (MatmulFlops(stage=0, predicted_flops=8.0, observed_flops=8.0, largest=largest),)
    found = Audit(
        plan="tiny", plan_sha256="0", target="cuda", devices=4, traced_devices=4, rows=ROWS, memory=memory,
        normalisations=("fsdp 2, was 4",), unparsed=("custom_call",), wire=wire, compiler=compiler, matmuls=matmuls,
    )  # fmt: skip
    assert valid(found.to_json()) == "planc.audit/1"


def test_a_receipt_agrees_with_its_schema() -> None:
    assert valid(receipt().to_json()) == "planc.receipt/1"
    whole = receipt((5.5, None), course={"lr": 1e-3}, routing_flips=3, predicted={"mfu": 0.4}, goodput=0.9)
    assert valid(whole.to_json()) == "planc.receipt/1"


def test_a_checkpoint_agrees_with_its_schema() -> None:
    stored = Stored(shape=(4, 2), boxes=(StoredBox(file="0.bin", offset=(0, 0), size=(4, 2)),))
    manifest = Manifest(
        step=2, optimizer_steps=2, plan="tiny", plan_sha256="0", mesh={"fsdp": 2}, target="cuda", runtime="torch",
        versions={}, model="llama_tiny", course={"lr": 1e-3}, data_sha256="0", saved_at="2025-01-01T00:00:00Z",
        position=Position(step=2, sequences=16, tokens=2048), files={"0.bin": File(bytes=32, sha256="0" * 64)},
        tensors={"output": stored},
    )  # fmt: skip
    assert valid(json.loads(manifest.text())) == "planc.checkpoint/1"


@pytest.mark.parametrize("path", [*BUNDLED, *FIELD], ids=lambda p: p.stem)
def test_a_compiled_plan_agrees_with_its_schema(path: Path) -> None:
    assert valid(json.loads(load(path).canonical())) == "planc.plan/1"


def test_every_format_has_a_schema_and_every_schema_an_answer() -> None:
    """The formats that planc and its laboratory name are those that are published, and each was validated here."""
    sources = [path.read_text() for root in ("planc", "backends", "tests/lab") for path in (ROOT / root).rglob("*.py")]
    named = {name for text in sources for name in re.findall(r"planc\.[a-z_.]+/[0-9]+", text)}
    assert named == set(schemas.names()) == {format for format, _, _ in ANSWERS} | BUILT


@pytest.mark.parametrize("format", schemas.names())
def test_a_schema_is_one_and_is_printed(format: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--schema", format]) == 0
    printed = json.loads(capsys.readouterr().out)
    Draft202012Validator.check_schema(printed)
    assert printed["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert (printed["title"], printed["properties"]["format"]["const"]) == (format, format)
    assert printed == schemas.schema(format)


def test_a_format_that_has_no_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--schema", "planc.reprot/1"]) == 2
    assert "did you mean `planc.report/1`?" in capsys.readouterr().err
    assert main(["explain", "--schema"]) == 0
    assert capsys.readouterr().out.split() == schemas.names()


@pytest.mark.usefixtures("folder")
def test_an_answer_may_gain_keys_and_its_objects_may_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "tiny.plan", "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert valid({**report, "later": 1}) == "planc.report/1"
    lacking = {name: value for name, value in report.items() if name != "memory"}
    changed = {**report, "step": {**report["step"], "later": 1}}
    for wrong in (lacking, changed, {**report, "devices": "4"}):
        with pytest.raises(ValidationError):
            valid(wrong)


def test_a_number_has_its_unit() -> None:
    step = schemas.schema("planc.report/1")["properties"]["step"]["anyOf"][0]["properties"]
    assert {name: step[name].get("description") for name in ("time_s", "mfu", "tflops_per_device")} == {
        "time_s": "s",
        "mfu": "share of the dense peak",
        "tflops_per_device": "TFLOP/s on one device",
    }
