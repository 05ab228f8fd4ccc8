"""The loop and the worker, on a runtime made of numpy."""

from __future__ import annotations

import io
import math
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest

from planc.ir.session import Session
from planc.trainer.data.stream import PythonStdlib
from planc.trainer.preset.load import load_preset
from planc.trainer.preset.settings import TrainTable
from planc.trainer.receipt.receipt import Receipt, read_receipt
from planc.trainer.run import loop, worker
from planc.trainer.run.loop import Facts, History, NotFiniteError
from planc.trainer.run.lr_schedule import learning_rate
from planc.trainer.telemetry.events import Event, EventTable, HeldOut, Skipped, StepDone, decode, encode
from tests.trainer.bigram import BigramRuntime, BigramSession
from tests.trainer.stand_in import lowering_to

PRESET = Path(__file__).resolve().parents[2] / "plans" / "presets" / "tiny.toml"


def work(monkeypatch: pytest.MonkeyPatch, runtime: BigramRuntime, folder: Path, *more: str) -> int:
    """The worker's own main, in this process."""

    monkeypatch.setattr(worker, "lower_plan", lowering_to(runtime))
    request = ["--preset", str(PRESET), "--target", "cuda", "--receipt", str(folder / "r.json")]
    return worker.main([*request, *more])


def test_a_run_learns_and_says_all_it_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runtime = BigramRuntime()
    assert work(monkeypatch, runtime, tmp_path, "--steps", "30") == 0
    receipt, preset = read_receipt(tmp_path / "r.json"), load_preset(PRESET)
    assert runtime.calls == ["prepare 4", "start"]
    assert runtime.settings is not None
    assert runtime.settings.betas == preset.train.betas
    assert runtime.session is not None
    assert runtime.session.closed
    assert len(receipt.losses) == len(receipt.grad_norms) == 30
    assert receipt.losses[0] == pytest.approx(math.log(256))
    assert receipt.losses[-1] < 4.5
    assert receipt.measured.heldout_loss_last is not None
    assert receipt.measured.heldout_loss_last < 4.5
    assert list(receipt.measured.heldout_losses) == [0, 30]
    assert (receipt.plan_sha256, receipt.mesh) == (preset.plan.sha256, {"fsdp": 2, "tp": 2})
    assert (receipt.tokens_per_step, receipt.dtype) == (1024, "fp32")
    assert (receipt.runtime, receipt.features, receipt.compile.uncached) == ("numpy", ("bigram",), 0)
    assert {"planc", "python", "numpy"} <= set(receipt.versions)
    assert (receipt.predicted, receipt.collectives, receipt.peak_memory_gib) == (None, None, None)
    assert receipt.goodput is not None
    assert receipt.measured.goodput_s is not None
    assert 0 < receipt.goodput < 1


def test_two_runs_have_equal_losses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    receipts: list[Receipt] = []
    for name in "ab":
        (tmp_path / name).mkdir()
        assert work(monkeypatch, BigramRuntime(), tmp_path / name, "--steps", "4") == 0
        receipts.append(read_receipt(tmp_path / name / "r.json"))
    assert receipts[0].losses == receipts[1].losses
    assert receipts[0].init_sha256 == receipts[1].init_sha256


def test_the_undivided_model_is_marked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runtime = BigramRuntime()
    assert work(monkeypatch, runtime, tmp_path, "--steps", "1", "--single") == 0
    assert runtime.calls == ["prepare 1", "single"]
    assert "undivided" in read_receipt(tmp_path / "r.json").features


def test_a_loss_that_is_no_number_stops_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime = BigramRuntime(breaks_at=3)
    assert work(monkeypatch, runtime, tmp_path, "--steps", "9") == 1
    said = capsys.readouterr().err
    assert "error[E1011]: step 3: loss nan" in said
    assert "not finite on rank 0: gradient logits" in said
    assert not (tmp_path / "r.json").exists()
    assert runtime.session is not None
    assert runtime.session.closed


def train_on(session: BigramSession, steps: int, told: list[Event]) -> History:
    source = PythonStdlib(4, 16, 0, 65536)
    settings = TrainTable(steps=steps, lr=1e-3, on_nan="skip", eval_batches=0)
    return loop.train(
        cast(Session, session), source, settings, steps=steps, facts=Facts(64, 640.0, 1e6), tell=told.append
    )


def test_a_loss_that_is_no_number_may_be_skipped() -> None:
    told: list[Event] = []
    history = train_on(BigramSession(256, breaks_at=3), 5, told)
    assert [loss is None for loss in history.losses] == [False, False, True, False, False]
    assert [norm is None for norm in history.grad_norms] == [loss is None for loss in history.losses]
    (skipped,) = (event for event in told if isinstance(event, Skipped))
    assert (skipped.step, skipped.where) == (3, ["rank 0: gradient logits"])
    assert "skipped: loss nan" in skipped.line()


def test_a_run_that_only_skips_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BigramSession, "step", lambda *_: (math.nan, 1.0))
    told: list[Event] = []
    with pytest.raises(NotFiniteError, match="step 11"):
        train_on(BigramSession(256), 50, told)
    assert len(told) == 10


def test_a_framework_that_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime = BigramRuntime()

    def absent(_devices: int) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(runtime, "prepare_environment", absent)
    assert work(monkeypatch, runtime, tmp_path) == 1
    assert "error[E1009]: the cuda target needs torch" in capsys.readouterr().err


def test_the_request_survives_its_command_line() -> None:
    for steps, single in ((None, False), (3, True)):
        request = worker.WorkerArguments(Path("/p.toml"), "xla", steps, Path("/r.json"), single)
        assert worker._request(request.arguments()) == request


def test_the_learning_rate() -> None:
    train = TrainTable(steps=110, lr=1.0, warmup_steps=10, min_lr=0.1)
    rates = [learning_rate(train, step) for step in range(1, 121)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == 1.0
    assert rates[59] == pytest.approx(0.55)
    assert rates[109:] == [pytest.approx(0.1)] * 11
    assert all(a >= b for a, b in pairwise(rates[9:]))
    assert learning_rate(TrainTable(steps=5, lr=2.0, schedule="constant"), 4) == 2.0


def test_events_survive_the_pipe() -> None:
    for event in (StepDone(3, 9, 1 / 3, 2.0, 1e-3, 1e5, 12.0), HeldOut(0, 5.5)):
        assert decode(encode(event)) == event
    assert decode("a warning of some library") is None
    assert decode(encode(HeldOut(0, 5.5)) + '@heartbeat {"moves": 1}') is None, "two lines in one end no reader"


def test_the_table_keeps_every_tenth_step() -> None:
    stream = io.StringIO()
    table = EventTable(stream, 10)
    table(HeldOut(0, 5.5))
    for step in range(1, 24):
        table(StepDone(step, 23, 5.0, 1.0, 1e-3, 2e4, 3700.0))
    lines = stream.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["step", "0", "1", "10", "20", "23"]
    assert lines[-1].endswith("1:01:40")


def test_a_terminal_shows_every_step_on_one_line() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    table = EventTable(stream, 10)
    for step in range(1, 5):
        table(StepDone(step, 20, 5.0, 1.0, 1e-3, 2e4, 45.0))
    assert stream.getvalue().count("\r") == 4
    assert stream.getvalue().count("\n") == 2
