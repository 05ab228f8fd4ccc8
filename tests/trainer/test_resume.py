"""Going on from a checkpoint: the same losses to the bit, and a refusal for every run that would not be the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import planc
from planc import cli
from planc.diag import PlanError, Span
from planc.trainer.checkpoint import directory as folder
from planc.trainer.checkpoint.hugging_face import imported
from planc.trainer.checkpoint.resume import NEWEST, start_of
from planc.trainer.checkpoint.tensor_files import Reader
from planc.trainer.data.sources import source_of
from planc.trainer.preset.embed import embed
from planc.trainer.preset.load import load_preset
from planc.trainer.receipt.receipt import Receipt, read_receipt
from planc.trainer.run import launch, worker
from planc.trainer.run.train import prepare
from tests.trainer.moving import MovingRuntime, MovingSession
from tests.trainer.stand_in import lowering_to

PLAN = """plan moving
model     llama_micro
batch     8 x 32 tokens microbatch 2
cluster   4 x cpu_local
mesh      dp 4
use       ddp over dp
compute   fp32
"""
TRAIN = """[train]
steps = 9
lr = 1e-2
warmup_steps = 2
eval_batches = 1
eval_every = 4
[data]
max_bytes = 65536
[checkpoint]
folder = "kept"
every_steps = 3
"""


@pytest.fixture
def preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A preset whose runs are made by numpy, in this process."""
    monkeypatch.setattr(worker, "lower_plan", lowering_to(MovingRuntime()))
    before = signal.getsignal(signal.SIGTERM)
    path = written(tmp_path / "run.toml", PLAN)
    yield path
    signal.signal(signal.SIGTERM, before)


def written(path: Path, plan: str, *changes: tuple[str, str]) -> Path:
    source = path.with_suffix(".plan")
    source.write_text(plan)
    text = TRAIN
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    embed(planc.load(source), source, path)
    return path


def work(preset: Path, *more: str) -> int:
    receipt = preset.with_suffix(".json")
    return worker.main(["--preset", str(preset), "--target", "cuda", "--receipt", str(receipt), *more])


def receipt(preset: Path) -> Receipt:
    return read_receipt(preset.with_suffix(".json"))


def whole_run(preset: Path) -> Receipt:
    assert work(preset, "--checkpoint", str(preset.parent / "other")) == 0
    return receipt(preset)


def steps(preset: Path) -> list[int]:
    return [k.step for k in folder.stored_checkpoints(preset.parent / "kept")]


def test_a_run_in_parts_is_the_run_in_one(preset: Path) -> None:
    expected = whole_run(preset)
    for last in ("1", "5", "9"):
        assert work(preset, "--resume", "--steps", last) == 0
    found = receipt(preset)
    assert (found.losses, found.grad_norms) == (expected.losses, expected.grad_norms)
    assert set(expected.measured.heldout_losses.items()) <= set(found.measured.heldout_losses.items())
    assert steps(preset) == [5, 6, 9], "three are kept; the end of a part is saved as well"


@pytest.mark.parametrize("every_steps", [0, 3])
@pytest.mark.parametrize("folder_in_preset", ["", "kept"])
@pytest.mark.parametrize("checkpoint", ["", "given"])
@pytest.mark.parametrize("more", [(), ("--steps", "4"), ("--single",), ("--resume",)])
def test_settings_of_the_preset_and_of_the_command_line_go_together(
    preset: Path, every_steps: int, folder_in_preset: str, checkpoint: str, more: tuple[str, ...], capsys: Any
) -> None:
    """Saving needs a folder, in the preset or on the command line; with one, every combination ends with a receipt."""
    written(preset, PLAN, ("every_steps = 3", f"every_steps = {every_steps}"), ('"kept"', f'"{folder_in_preset}"'))
    words = ["--checkpoint", str(preset.parent / checkpoint)] if checkpoint else []
    used = checkpoint or folder_in_preset
    status = work(preset, *words, *more)
    if not used and (every_steps or "--resume" in more):
        assert status == 1
        assert capsys.readouterr().err.startswith("error[E1015]" if every_steps else "error[E10")
        assert not preset.with_suffix(".json").exists()
        return
    assert status == 0
    last = 4 if "--steps" in more else 9
    assert len(receipt(preset).losses) == last
    folders = {p.name for p in preset.parent.iterdir() if p.is_dir()}
    assert folders & {"kept", "given"} == ({used} if used else set())
    if used:
        expected = [*range(every_steps, last, every_steps), last] if every_steps else [last]
        assert [k.step for k in folder.stored_checkpoints(preset.parent / used)] == expected


def test_going_back_puts_the_later_ones_aside(preset: Path) -> None:
    assert work(preset) == 0
    expected = receipt(preset).losses
    assert work(preset, "--resume", "3") == 0
    assert receipt(preset).losses == expected
    assert steps(preset) == [3, 6, 9]
    aside = {p.name for p in (preset.parent / "kept").iterdir() if p.name.startswith("aside-")}
    assert aside == {"aside-step-00000006-0", "aside-step-00000009-0"}


def test_a_finished_run_has_nothing_left_to_do(preset: Path) -> None:
    assert work(preset) == 0
    expected = receipt(preset)
    assert work(preset, "--resume") == 0
    assert receipt(preset).losses == expected.losses
    assert steps(preset) == [3, 6, 9]


def test_sigterm_saves_and_says_so(preset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = whole_run(preset)
    step = MovingSession.step

    def asked(self: MovingSession, *arguments: Any) -> tuple[float, float]:
        if self.optimizer_steps == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, *arguments)

    monkeypatch.setattr(MovingSession, "step", asked)
    assert work(preset) == launch.PREEMPTED
    assert steps(preset) == [3, 5], "the step under way is finished, and saved"
    monkeypatch.setattr(MovingSession, "step", step)
    assert work(preset, "--resume") == 0
    assert receipt(preset).losses == expected.losses


def test_a_last_save_that_fails_is_an_error(preset: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _path: type("Usage", (), {"free": 10}))
    assert work(preset) == 1
    assert "error[E1025]: the checkpoint of step 9 could not be written" in capsys.readouterr().err
    assert steps(preset) == []


def test_a_folder_that_another_run_holds(preset: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(folder.Lock.taken, "__defaults__", (0.1,))
    (preset.parent / "kept").mkdir()
    lock = folder.Lock(preset.parent / "kept")
    assert lock.taken()
    assert work(preset) == 1
    assert "error[E1017]: another run is saving in" in capsys.readouterr().err
    lock.release()


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let another run act after this one has chosen its start, and before it has the lock."""
    taken = folder.Lock.taken

    def waited(self: folder.Lock, wait_s: float = 0.1) -> bool:
        act()
        return taken(self, wait_s)

    monkeypatch.setattr(folder.Lock, "taken", waited)


@pytest.mark.parametrize("policy", ["refuse", "previous"])
@pytest.mark.parametrize("resumes", [False, True])
def test_a_run_that_saved_while_this_one_waited_is_not_forgotten(
    preset: Path, policy: str, resumes: bool, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """A job that is started again while the first one still saves: it would begin anew, or from an older step."""
    written(preset, PLAN, ("every_steps = 3", f'every_steps = 3\non_damage = "{policy}"'))
    assert work(preset) == 0
    kept, away = preset.parent / "kept", preset.parent / "away"
    away.mkdir()
    for k in folder.stored_checkpoints(kept)[1 if resumes else 0 :]:
        k.path.rename(away / k.path.name)
    before = sorted(p.name for p in kept.iterdir())

    def saves() -> None:
        for path in away.iterdir():
            path.rename(kept / path.name)

    meanwhile(monkeypatch, saves)
    assert work(preset, *(["--resume"] if resumes else [])) == 1
    assert "error[E1017]: another run has saved step-00000009" in capsys.readouterr().err
    assert steps(preset) == [3, 6, 9]
    assert set(before) <= {p.name for p in kept.iterdir()}
    monkeypatch.undo()


def test_a_damaged_one_that_appears_does_not_stop_a_run_that_passes_over_it(
    preset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(preset, PLAN, ("every_steps = 3", 'every_steps = 3\non_damage = "previous"'))
    assert work(preset) == 0
    meanwhile(monkeypatch, lambda: (preset.parent / "kept" / "step-00000012").mkdir(exist_ok=True))
    assert work(preset, "--resume") == 0


@pytest.mark.parametrize("call", ["mkdir", "open"])
def test_a_read_only_folder_is_a_diagnostic(
    preset: Path, call: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """As a file system that is mounted read-only answers: before the first step."""
    (preset.parent / "kept").mkdir()

    def fails(*_given: Any, **_options: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(folder.Lock, "taken", fails) if call == "open" else monkeypatch.setattr(Path, "mkdir", fails)
    assert work(preset) == 1
    assert "error[E1025]: no checkpoint can be written in" in capsys.readouterr().err
    assert not preset.with_suffix(".json").exists()


@pytest.mark.parametrize("way", ["file", "link", "mode"])
def test_a_folder_that_cannot_be_made_is_found_out_before_anything_starts(
    preset: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = preset.parent / "kept"
    if way == "file":
        kept.write_text("")
    elif way == "link":
        kept.symlink_to("nowhere")
    else:
        monkeypatch.setattr(os, "access", lambda _path, mode: not mode & os.W_OK)
    with pytest.raises(PlanError) as raised:
        prepare(preset, "cuda")
    assert "E1025" in [d.code for d in raised.value.diagnostics]


def refused(preset: Path, resume: int | None = NEWEST) -> str:
    """The code with which the start is refused, before anything is started; nothing on the disk changes."""
    kept = preset.parent / "kept"
    before = {p: p.read_bytes() for p in kept.rglob("*") if p.is_file()}
    loaded = load_preset(preset)
    with pytest.raises(PlanError) as raised:
        start_of(loaded, resume, source_of(loaded).sha256)
    assert {p: p.read_bytes() for p in kept.rglob("*") if p.is_file()} == before
    (found,) = raised.value.diagnostics
    return f"{found.code} {found.message}"


def test_a_new_run_does_not_begin_among_old_checkpoints(preset: Path) -> None:
    assert work(preset) == 0
    assert refused(preset, None).startswith("E1016")


def test_a_step_that_is_not_there(preset: Path) -> None:
    assert work(preset) == 0
    assert refused(preset, 4).startswith("E1019")


def test_resuming_where_nothing_is_saved(preset: Path) -> None:
    start = start_of(load_preset(preset), NEWEST, "")
    assert start.path is None
    assert [n.code for n in start.notes] == ["N1028"]
    loaded = load_preset(written(preset, PLAN, ('folder = "kept"\nevery_steps = 3', "")))
    with pytest.raises(PlanError, match="E1015"):
        start_of(loaded, NEWEST, "")


MISFITS: dict[str, tuple[tuple[str, str], tuple[tuple[str, str], ...], str]] = {
    "model": (
        ("llama_micro", "llama_tiny"),
        (),
        "E1018 the checkpoint is of llama_micro, the plan's model is llama_tiny",
    ),
    "batch": (
        ("8 x 32", "16 x 32"),
        (),
        "E1024 the run would not be the one that was saved: batch_sequences was 8 and is 16",
    ),
    "rate": (
        ("", ""),
        (("1e-2", "2e-2"),),
        "E1024 the run would not be the one that was saved: lr was 0.01 and is 0.02",
    ),
    "length": (("", ""), (("steps = 9", "steps = 10"),), "E1024"),
    "data": (("", ""), (("65536", "131072"),), "E1023 the data have changed since step 9 was saved"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_a_run_that_would_not_be_the_same_is_refused(preset: Path, case: str) -> None:
    (old, new), changes, says = MISFITS[case]
    assert work(preset) == 0
    written(preset, PLAN.replace(old, new), *changes)
    assert refused(preset).startswith(says)


def test_a_change_that_the_preset_allows_is_made(preset: Path) -> None:
    assert work(preset) == 0
    written(
        preset,
        PLAN,
        ("steps = 9", "steps = 12"),
        ("65536", "131072"),
        ("[checkpoint]", '[checkpoint]\nallow = ["steps", "data"]'),
    )
    assert work(preset, "--resume") == 0
    assert len(receipt(preset).losses) == 12


def damage(preset: Path, step: int) -> None:
    part = next((preset.parent / "kept" / f"step-{step:08}").glob("part-*"))
    os.truncate(part, part.stat().st_size - 1)


def test_a_damaged_checkpoint_is_refused_or_passed_over_as_the_preset_says(preset: Path) -> None:
    assert work(preset) == 0
    expected = receipt(preset).losses
    damage(preset, 9)
    assert refused(preset).startswith("E1021 checkpoint step-00000009")
    written(preset, PLAN, ("every_steps = 3", 'every_steps = 3\non_damage = "previous"'))
    loaded = load_preset(preset)
    start = start_of(loaded, NEWEST, source_of(loaded).sha256)
    assert start.path is not None
    assert start.path.name == "step-00000006"
    assert [n.code for n in start.notes] == ["N1027"]
    assert work(preset, "--resume") == 0
    assert receipt(preset).losses == expected


def test_when_all_are_damaged_nothing_is_resumed(preset: Path) -> None:
    assert work(preset) == 0
    for step in steps(preset):
        damage(preset, step)
    written(preset, PLAN, ("every_steps = 3", 'every_steps = 3\non_damage = "previous"'))
    assert refused(preset).startswith("E1021 checkpoint step-00000009")


def test_keeping_few_never_removes_the_one_just_written(preset: Path) -> None:
    """After going back, the steps of the other way are later than those that are written now."""
    changes = ("every_steps = 3", "every_steps = 3\nkeep = 1")
    written(preset, PLAN, ("every_steps = 3", "every_steps = 3\nkeep = 0"))
    assert work(preset) == 0
    written(preset, PLAN, changes)
    assert work(preset, "--resume", "3", "--steps", "6") == 0
    assert steps(preset) == [6]
    folder.verify(preset.parent / "kept" / "step-00000006")


@pytest.mark.parametrize("said", [lambda r: r.checkpoint, lambda r: r.resume, lambda r: r.chosen])
def test_the_request_survives_its_command_line(said: Callable[[worker.WorkerArguments], Any]) -> None:
    request = worker.WorkerArguments(
        Path("/p.toml"), "xla", 4, Path("/r.json"), False, Path("/kept"), -1, "step-00000001"
    )
    assert (
        said(worker._request(request.arguments()))
        == said(request)
        != said(worker.WorkerArguments(Path(), "xla", None, Path()))
    )


def test_the_newest_checkpoint_is_written_for_transformers(preset: Path, tmp_path: Path) -> None:
    assert work(preset) == 0
    before = (preset.parent / "kept" / "step-00000009" / "checkpoint.json").read_text()
    assert cli.main(["weights", str(preset), str(tmp_path / "hf")]) == 0
    read = imported(load_preset(preset).plan.model, tmp_path / "hf", Span("p", 1, 1, 1, 1))
    path = preset.parent / "kept" / "step-00000009"
    reader = Reader(path, folder.read_manifest(path).tensors)
    name = "layers.2.attention.wk.weight"
    whole = reader(f"params.{name}", (slice(None), slice(None)))
    assert np.array_equal(read(name, whole.shape), whole)
    assert (path / "checkpoint.json").read_text() == before
    assert cli.main(["weights", str(preset), str(tmp_path / "hf")]) == 1, "the folder is not empty"


def test_a_run_may_start_from_weights(preset: Path, tmp_path: Path) -> None:
    assert work(preset) == 0
    assert cli.main(["weights", str(preset), str(tmp_path / "hf")]) == 0
    written(preset, PLAN, ("lr = 1e-2", 'lr = 1e-2\nweights = "hf"'), ('"kept"', '"again"'))
    from_seed = receipt(preset).init_sha256
    assert work(preset) == 0
    assert receipt(preset).init_sha256 != from_seed
