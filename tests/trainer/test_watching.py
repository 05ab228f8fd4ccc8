"""The metrics file, goodput from it, boards, and traces."""

from __future__ import annotations

import gzip
import json
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from planc.diag import PlanError
from planc.trainer.preset.load import load_preset
from planc.trainer.run.train import prepare
from planc.trainer.telemetry.events import HeldOut, SaveDone, StepDone
from planc.trainer.telemetry.goodput import measured_goodput
from planc.trainer.telemetry.metrics_file import Metrics, Record, read_metrics
from planc.trainer.telemetry.profiler import Profile
from planc.trainer.telemetry.reporter import Watching, metrics_path
from tests.trainer.bigram import BigramRuntime, BigramSession
from tests.trainer.test_loop import work

TINY = Path(__file__).resolve().parents[2] / "plans" / "presets" / "tiny.toml"
KEYS = {"time", "kind", "step", "steps", "loss", "grad_norm", "lr", "tokens_per_s", "left_s", "step_s", "data_s"}


def preset(folder: Path, watch: str, checkpoint: str = "") -> Path:
    text = TINY.read_text().replace("../tiny.plan", "absent.plan").partition("[checkpoint]")[0]
    path = folder / "run.toml"
    path.write_text(f"{text}[checkpoint]\n{checkpoint}\n[watch]\n{watch}\n")
    return path


def test_every_run_writes_metrics(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert work(monkeypatch, BigramRuntime(), tmp_path, "--steps", "3") == 0
    records = [*read_metrics(tmp_path / "r.metrics.jsonl")]
    assert [r["kind"] for r in records] == ["start", "held_out", "step", "step", "step", "held_out", "end"]
    start, steps, end = records[0], [r for r in records if r["kind"] == "step"], records[-1]
    assert (start["devices"], start["tokens_per_step"], start["done"]) == (4, 1024, 0)
    assert set(steps[0]) >= KEYS
    assert [r["step"] for r in steps] == [1, 2, 3]
    assert all(r["mfu"] > 0 and 0 <= r["data_s"] < r["step_s"] for r in steps)
    assert end["why"] == "done"
    assert records == sorted(records, key=lambda r: r["time"])


def test_a_run_that_fails_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert work(monkeypatch, BigramRuntime(breaks_at=2), tmp_path) == 1
    assert [*read_metrics(tmp_path / "r.metrics.jsonl")][-1]["why"] == "failed"


def test_where_the_metrics_go(tmp_path: Path) -> None:
    plain = load_preset(preset(tmp_path, ""))
    assert metrics_path(plain, "xla", None) == Path("runs/run-xla.metrics.jsonl")
    assert metrics_path(plain, "xla", Path("a/r.json")) == Path("a/r.metrics.jsonl")
    saving = load_preset(preset(tmp_path, "", 'folder = "kept"'))
    assert metrics_path(saving, "xla", Path("a/r.json")) == tmp_path / "kept" / "metrics.jsonl"
    named = load_preset(preset(tmp_path, 'metrics = "m.jsonl"', 'folder = "kept"'))
    assert metrics_path(named, "xla", None) == tmp_path / "m.jsonl"


KEYS_OF_OUTPUTS = ["metrics", "tensorboard", "wandb", "profile", "folder"]


@pytest.mark.parametrize("key", KEYS_OF_OUTPUTS)
@pytest.mark.parametrize("place", ["../victim", "a/../../victim", "/victim", "away/victim", ".", "a/..", "a\x7fb"])
def test_an_output_outside_the_presets_folder_is_refused(tmp_path: Path, key: str, place: str) -> None:
    folder = tmp_path / "preset"
    folder.mkdir()
    (tmp_path / "victim").write_text("mine")
    (folder / "away").symlink_to(tmp_path)
    said = f"{key} = {json.dumps(place)}"
    path = preset(folder, "", said) if key == "folder" else preset(folder, said)
    with pytest.raises(PlanError) as raised:
        load_preset(path)
    (found,) = raised.value.diagnostics
    assert (found.code, found.span.file) == ("E1035", str(path))
    assert path.read_text().splitlines()[found.span.line - 1].startswith(key)
    assert (tmp_path / "victim").read_text() == "mine"
    if key == "folder":
        assert load_preset(path, tmp_path / "given").checkpoints == tmp_path / "given"


@pytest.mark.parametrize("key", KEYS_OF_OUTPUTS)
@pytest.mark.parametrize("place", ["a" * 300, "b/" * 3000 + "c"])
def test_an_output_whose_name_no_file_can_have_is_refused(tmp_path: Path, key: str, place: str) -> None:
    said = f'{key} = "{place}"'
    path = preset(tmp_path, "", said) if key == "folder" else preset(tmp_path, said)
    with pytest.raises(PlanError, match="is no name of a file here: File name too long") as raised:
        load_preset(path)
    assert [d.code for d in raised.value.diagnostics] == ["E1035"]


def test_metrics_replace_no_other_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.plan").write_text("mine")
    (tmp_path / "link").symlink_to("nothing")
    for name in ("run.plan", "run.toml", "link"):
        before = (tmp_path / name).read_text() if (tmp_path / name).exists() else ""
        path = preset(tmp_path, f'metrics = "{name}"')
        before = path.read_text() if name == path.name else before
        with pytest.raises(PlanError, match="E1035"):
            load_preset(path)
        Metrics(tmp_path / name, goes_on=False).close()
        assert "is not written any more" in capsys.readouterr().err
        assert ((tmp_path / name).read_text() if before else "") == before
    assert not (tmp_path / "nothing").exists()
    metrics = tmp_path / "m.jsonl"
    for text in ("", '{"time": 1.0, "kind": "start"}\n'):
        metrics.write_text(text)
        assert load_preset(preset(tmp_path, 'metrics = "m.jsonl"')).notes
        Metrics(metrics, goes_on=False).close()
        assert metrics.read_text() == ""


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("steps = ", f"steps = {10**23}  # ", "E1001"),  # TOML's own bound: 64 bits
        ("steps = ", f"log_every = {10**23}\nsteps = ", "E1001"),
        ("steps = ", f"seed = {2**64}\nsteps = ", "E1001"),
        ("steps = ", f"steps = {10**17}  # ", "E1003"),
        ("steps = ", "weight_decay = 1e300\nsteps = ", "E1003"),
        ("lr = ", "lr = 1e300  # ", "E1003"),
        ("lr = ", "lr = nan  # ", "E1003"),
    ],
)
def test_numbers_of_a_preset_have_bounds(tmp_path: Path, old: str, new: str, code: str) -> None:
    path = preset(tmp_path, "")
    head, table, rest = path.read_text().partition("[train]\n")
    kept = [line for line in rest.split("\n") if not line.startswith(("seed", "weight_decay", "log_every"))]
    text = "\n".join(kept)
    assert f"\n{old}" in f"\n{text}"
    path.write_text(head + table + f"\n{text}".replace(f"\n{old}", f"\n{new}", 1))
    with pytest.raises(PlanError) as raised:
        load_preset(path)
    assert [d.code for d in raised.value.diagnostics] == [code]


def test_metrics_go_on_after_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"time": 1.0, "kind": "start"}\n{"time": 2.0, "ki')
    metrics = Metrics(path, goes_on=True)
    metrics.write("start")
    metrics.close()
    assert [r["kind"] for r in read_metrics(path)] == ["start", "start"]


def test_a_full_disk_ends_the_metrics_and_not_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("a disk that is always full is Linux's /dev/full, which is not here")
    metrics = Metrics(Path("/dev/full"), goes_on=True)
    metrics.event(HeldOut(1, 2.0))
    metrics.event(HeldOut(2, 2.0))
    assert capsys.readouterr().err.count("is not written any more") == 1


def step(at: float, number: int, seconds: float) -> Record:
    return {"time": at, "kind": "step", "step": number, "step_s": seconds, "data_s": 0.0}


@pytest.mark.parametrize("back_s", [0.0, 3.0, 1e6])
def test_a_clock_that_goes_back_makes_no_goodput_beyond_one(back_s: float) -> None:
    """Between two starts: the time in which it went back counts as none, and the rest as it is."""
    records: list[Record] = [
        {"time": 100.0, "kind": "start"},
        step(102.0, 1, 2.0),
        step(104.0, 2, 2.0),
        {"time": 105.0 - back_s, "kind": "start"},
        step(109.0 - back_s, 3, 2.0),
        step(111.0 - back_s, 4, 2.0),
        {"time": 111.0 - back_s, "kind": "end"},
    ]
    found = measured_goodput(records)
    assert found is not None
    assert found.productive_s == 8.0
    assert found.wall_s == pytest.approx(11.0 if back_s == 0 else 10.0)
    assert 0 < found.share <= 1


@pytest.mark.parametrize("line", ['{"kind": "step"}', '{"kind": "step", "step": "a", "step_s": 1}', "[" * 99_999, "1"])
def test_metrics_of_anothers_making_give_no_goodput(tmp_path: Path, line: str) -> None:
    loaded = load_preset(preset(tmp_path, 'metrics = "m.jsonl"'))
    watching = Watching(loaded, "cuda", 0, metrics_path(loaded, "cuda", None))
    watching.open(1.0, 0)
    with (tmp_path / "m.jsonl").open("a") as file:
        file.write(f"{line}\n")
    assert watching.goodput() is None
    watching.close("done")


def test_goodput_counts_every_second_once() -> None:
    """Two starts: ten seconds to the first step, a save of one second, a crash, one step lost and taken again."""
    records: list[Record] = [
        {"time": 100.0, "kind": "start"},
        step(112.0, 1, 5.0),  # a usual step takes 2 s: 3 s of these compile
        step(114.0, 2, 2.0),
        {"time": 115.0, "kind": "saved", "stall_s": 1.0},
        step(117.0, 3, 2.0),
        {"time": 130.0, "kind": "start"},
        step(140.0, 3, 4.0),
        step(142.0, 4, 2.0),
        {"time": 145.0, "kind": "held_out"},
        {"time": 145.0, "kind": "end"},
    ]
    found = measured_goodput(records)
    assert found is not None
    assert found.productive_s == pytest.approx(8.0)
    assert found.redone_s == pytest.approx(2.0)
    assert found.checkpoint_s == pytest.approx(1.0)
    assert found.restart_s == pytest.approx(10.0 + 13.0 + 8.0)
    assert found.stall_s == pytest.approx(3.0)
    assert found.wall_s == pytest.approx(45.0)
    assert found.share == pytest.approx(8 / 45)
    assert measured_goodput(records[:1]) is None


class Traced(BigramSession):
    def __init__(self) -> None:
        super().__init__(256)
        self.said: list[str] = []

    @contextmanager
    def profile(self, folder: str) -> Any:
        self.said.append("on")
        yield
        self.said.append(f"off after {self.steps}")


def test_a_trace_covers_the_steps_that_were_asked_for(tmp_path: Path) -> None:
    session = Traced()
    profile = Profile(session, (2, 3), tmp_path / "trace")  # type: ignore[arg-type]
    for number in range(1, 6):
        profile.before(number)
        session.steps = number
        profile.after(number)
    profile.close()
    assert session.said == ["on", "off after 3"]


@pytest.mark.parametrize("key", ["tensorboard", "wandb"])
def test_a_board_without_its_package_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setattr("planc.trainer.telemetry.boards.find_spec", lambda _name: None)
    with pytest.raises(PlanError) as error:
        prepare(preset(tmp_path, f'{key} = "board"'), "cuda")
    (found,) = error.value.diagnostics
    assert found.code == "E1009"
    assert key in found.message
    assert "planc[watch]" in found.help


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="needs tensorboard: pip install 'planc[watch]'")
def test_tensorboard_reads_what_is_written(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from planc.trainer.telemetry.boards import TensorBoard

    board = TensorBoard(tmp_path)
    board(StepDone(3, 9, 1.5, 2.0, 1e-3, 1e5, 12.0))
    board(SaveDone(3, 0.5, 1.0))
    board.close()
    found = EventAccumulator(str(tmp_path))
    found.Reload()
    assert [(e.step, e.value) for e in found.Scalars("train/loss")] == [(3, 1.5)]
    assert [(e.step, e.value) for e in found.Scalars("checkpoint/stall_s")] == [(3, 0.5)]


@pytest.mark.skipif(find_spec("wandb") is None, reason="needs wandb: pip install 'planc[watch]'")
def test_weights_and_biases_stay_offline(tmp_path: Path) -> None:
    from planc.trainer.telemetry.boards import WeightsAndBiases

    board = WeightsAndBiases(tmp_path, "project", {"lr": 1e-3})
    board(StepDone(1, 9, 1.5, 2.0, 1e-3, 1e5, 12.0))
    board.close()
    (run,) = (tmp_path / "wandb").glob("offline-run-*")
    assert list(run.glob("*.wandb"))


@pytest.mark.launch
@pytest.mark.parametrize("target", [pytest.param(t, marks=pytest.mark.long) for t in ("cuda", "xla")])
def test_a_whole_run_is_watched(tmp_path: Path, target: str) -> None:
    """One process: metrics, a trace of the second step, and predicted beside measured."""
    from planc.cli import main

    path = preset(tmp_path, 'metrics = "m.jsonl"\nprofile_steps = [2, 2]\nprofile = "trace"')
    receipt = tmp_path / "r.json"
    arguments = ["train", str(path), "--target", target, "--single", "--steps", "3", "--receipt", str(receipt)]
    assert main(arguments) == 0
    said = json.loads(receipt.read_text())
    assert 0 < said["goodput"] < 1
    steps = [r for r in read_metrics(tmp_path / "m.jsonl") if r["kind"] == "step"]
    assert [r["loss"] for r in steps] == said["losses"]
    traces = [p for p in (tmp_path / "trace").rglob("*") if p.is_file()]
    assert traces
    assert all(p.stat().st_size for p in traces)
    assert {"forward", "backward", "optimizer"} <= {name.split(":")[0].split(" ")[-1] for name in named(tmp_path)}


def named(folder: Path) -> set[str]:
    """Names in the traces in `folder`: of ranges by torch, of the parts of instructions by JAX."""
    written = [json.loads(p.read_text()) for p in folder.rglob("rank-*.json")]
    written += [json.loads(gzip.decompress(p.read_bytes())) for p in folder.rglob("*.trace.json.gz")]
    events = [event for trace in written for event in trace["traceEvents"]]
    ranges = {e["name"] for e in events if e.get("cat") == "user_annotation"}
    return ranges | {e["args"]["part"] for e in events if "part" in e.get("args", {})}
