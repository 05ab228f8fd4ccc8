"""`planc train` on this machine: what is refused before anything starts, and real runs on both targets."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import cast

import pytest

import planc
from planc.diag import PlanError
from planc.ir.session import CollectiveError
from planc.ir.target import Target
from planc.trainer.preset.embed import embed
from planc.trainer.receipt.crosscheck import crosscheck
from planc.trainer.receipt.receipt import Receipt, read_receipt
from planc.trainer.run import launch, worker
from planc.trainer.run import train as run
from planc.trainer.telemetry.events import Event, HeldOut

ROOT = Path(__file__).resolve().parents[2]
PRESET = ROOT / "plans" / "presets" / "tiny.toml"


def preset_of(folder: Path, *changes: tuple[str, str], data: str = "") -> Path:
    """A preset of the tiny plan with its text changed."""
    text = (ROOT / "plans" / "tiny.plan").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "changed.plan").write_text(text)
    path = folder / "run.toml"
    path.write_text(f"[train]\nsteps = 2\nlr = 1e-3\n[data]\n{data}\n")
    embed(planc.load(folder / "changed.plan"), folder / "changed.plan", path)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(PlanError) as raised:
        run.prepare(path, "cuda")
    (found,) = raised.value.diagnostics
    return f"{found.code} {found.message}"


def test_a_plan_for_a_cluster_is_not_started_here(tmp_path: Path) -> None:
    path = preset_of(
        tmp_path, ("4 x cpu_local", "128 x cpu_local"), ("fsdp 2", "fsdp 64"), ("batch     8", "batch     256")
    )
    assert refusal(path).startswith("E1010 the plan is for 128 devices")


def test_a_vocabulary_without_room_for_bytes(tmp_path: Path) -> None:
    assert refusal(preset_of(tmp_path, ("llama_tiny", "llama_micro"))) == (
        "E1013 the data does not fit llama_micro: bytes are 256 tokens, the vocabulary has 134"
    )


def test_a_sequence_longer_than_the_text(tmp_path: Path) -> None:
    path = preset_of(tmp_path, ("x 128 tokens", "x 131072 tokens"), data="max_bytes = 65536")
    assert refusal(path).startswith("E1013")


def test_more_processes_than_cores_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_cores", lambda: 2)
    ready = run.prepare(PRESET, "cuda")
    assert ready.processes == 4
    assert [n.code for n in ready.notes] == ["W1014"]
    assert run.prepare(PRESET, "cuda", single=True).notes == ()


@pytest.mark.parametrize(
    ("finished", "says"),
    [
        (launch.Finished(1, ("", "Traceback\nValueError: bad\n\n"), 1), "rank 1 ended with status 1: ValueError"),
        (launch.Finished(1, ("no room\n@planc {}\n",), 0), "status 1: no room"),
        (launch.Finished(137, ("",), 0), "rank 0 ended with status 137: it wrote nothing"),
        (launch.Finished(1, ("error[E1012]: rank 0: all_reduce failed\n",), 0), "status 1: rank 0: all_reduce failed"),
        (launch.Finished(launch.TIMED_OUT, ("half",)), "not done after 5 s"),
    ],
)
def test_a_failure_says_which_rank_and_why(finished: launch.Finished, says: str) -> None:
    with pytest.raises(run.TrainingError, match="E1012") as raised:
        run._judge(finished, planc.diag.Span("p", 1, 1, 1, 1), 5.0)
    assert says in str(raised.value)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Target], Receipt]:
    """The shipped preset trained whole on a target, once for all tests."""

    @cache
    def trained_on(target: Target) -> Receipt:
        events: list[Event] = []
        path = tmp_path_factory.mktemp("train") / "receipt.json"
        predicted = {"step_time_s": 1.0}
        receipt = run.train(PRESET, target, receipt=path, predicted=predicted, on_event=events.append, timeout_s=900)
        assert read_receipt(path) == receipt
        assert len(events) == 102
        assert sum(isinstance(e, HeldOut) for e in events) == 2
        return receipt

    return trained_on


@pytest.fixture(params=["cuda", "xla"])
def trained(request: pytest.FixtureRequest, whole_run: Callable[[Target], Receipt]) -> Receipt:
    return whole_run(cast(Target, request.param))


@pytest.mark.launch
@pytest.mark.long
def test_both_targets_train_the_same(whole_run: Callable[[Target], Receipt]) -> None:
    """All steps: agreement of the first ones says little, as differences grow."""
    check = crosscheck([whole_run("cuda"), whole_run("xla")])
    assert check.ok, check


@pytest.mark.launch
@pytest.mark.long
def test_the_tiny_preset_learns(trained: Receipt) -> None:
    assert trained.losses[0] == pytest.approx(math.log(256), rel=0.05)
    assert sum(trained.losses[-10:]) / 10 < 0.6 * trained.losses[0]
    measured = trained.measured
    assert measured.heldout_loss_first is not None
    assert measured.heldout_loss_last is not None
    assert measured.heldout_loss_last < 0.6 * measured.heldout_loss_first
    assert all(norm > 0 for norm in trained.grad_norms)
    assert trained.predicted == {"step_time_s": 1.0}


@pytest.mark.launch
@pytest.mark.long
def test_a_divided_run_trains_as_an_undivided_one(trained: Receipt) -> None:
    """The first steps: `--steps` cuts the run short, it does not bend the schedule."""
    target = cast(Target, trained.target)
    undivided = run.train(PRESET, target, steps=10, single=True, timeout_s=600)
    check = crosscheck([trained.model_copy(update={"losses": trained.losses[:10]}), undivided])
    assert check.ok, check
    assert "undivided" in undivided.features


@pytest.mark.launch
def test_an_interrupt_ends_every_rank() -> None:
    code = (
        "import sys; from planc.trainer.run.train import train\n"
        f"try: train({str(PRESET)!r}, 'cuda', on_event=lambda e: print('event', flush=True))\n"
        "except KeyboardInterrupt: sys.exit(130)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "event\n"
    ranks = children(parent.pid)
    assert len(ranks) == 4
    parent.send_signal(signal.SIGINT)
    assert parent.wait(timeout=60) == 130
    limit = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in ranks):
        assert time.monotonic() < limit
        time.sleep(0.1)


def children(pid: int) -> list[int]:
    """Process ids that `pid` has started (Linux)."""
    return [int(p) for t in Path(f"/proc/{pid}/task").iterdir() for p in (t / "children").read_text().split()]


def test_a_rank_whose_collective_fails_says_so_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cut connection is no mistake of planc's: 60 lines of torch's calls say nothing about it."""

    def fails(request: object, started: float) -> None:
        raise CollectiveError("rank 1: all_gather over fsdp (ranks 0, 1) failed; \x1b[2J")

    monkeypatch.setattr(worker, "work", fails)
    assert worker.main(["--preset", "x.toml", "--target", "cuda", "--receipt", "r.json"]) == 1
    said = capsys.readouterr().err
    assert (
        said.startswith("error[E1012]: rank 1: all_gather over fsdp") and said.count("\n") == 1 and "\x1b" not in said
    )
