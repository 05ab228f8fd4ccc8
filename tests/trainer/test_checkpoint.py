"""A checkpoint by itself: written by several ranks, read by box, damaged in every way, never half there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import planc
from planc.backends.common.box_reader import open_checkpoint
from planc.diag import PlanError
from planc.ir.session import Session
from planc.trainer.checkpoint import directory as folder
from planc.trainer.checkpoint import tensor_files as parts
from planc.trainer.checkpoint.manager import read_history
from planc.trainer.checkpoint.manifest import HISTORY, NAME, Manifest, Position, read
from planc.trainer.checkpoint.writer import Failed, Saved, Saver, Where
from tests.trainer.moving import MovingSession

ROOT = Path(__file__).resolve().parents[2]
MODEL = planc.load(ROOT / "plans" / "tiny.plan").model
WORLD = 3


def manifest(step: int) -> Manifest:
    return Manifest(
        step=step, optimizer_steps=step, plan="p", plan_sha256="0", mesh={"dp": WORLD}, target="cuda", runtime="numpy",
        versions={}, model="m", course={}, data_sha256="d", saved_at="",
        position=Position(step=step, sequences=step, tokens=step),
    )  # fmt: skip


def history(step: int) -> dict[str, Any]:
    """A history of `step` steps."""
    values = [float(number) for number in range(1, step + 1)]
    return {"losses": values, "grad_norms": [None, *values[1:]], "seconds": values, "held_out": {"0": 5.5}}


class Small(MovingSession):
    """Three tensors: a scale, a matrix with fewer rows than ranks, and one of more rows."""

    rows = 1

    def __init__(self, rank: int, world: int = WORLD) -> None:
        super().__init__(MODEL, rank, world)
        stream = np.random.default_rng(0)
        shapes = {"params.a": (5,), "params.b": (2, 7), "exp_avg.b": (9, 3, 2)}
        self.state = {name: stream.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def where(path: Path, keep: int = 0) -> Where:
    return Where(path, "attempt", keep, asynchronous=True, timeout_s=5)


def saved(path: Path, *steps: int, keep: int = 0) -> list[Saved | Failed]:
    """Every rank saves at each of these steps; what rank 0 says."""
    savers = [Saver(cast(Session, Small(rank)), where(path, keep)) for rank in range(WORLD)]
    for step in steps:
        for saver in savers:
            saver.save(manifest(step), history(step))
        for saver in savers:
            saver.finish()
    return savers[0].news()


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    (news,) = saved(tmp_path, 7)
    assert isinstance(news, Saved)
    return news.path


def test_any_box_is_read_back(whole: Path) -> None:
    found = folder.verify(whole)
    assert (whole.name, found.step) == ("step-00000007", 7)
    reader, state = parts.Reader(whole, found.tensors), Small(0).state
    assert set(found.tensors) == set(state)
    for name, array in state.items():
        assert np.array_equal(reader(name, tuple(slice(None) for _ in array.shape)), array)
    assert np.array_equal(
        reader("exp_avg.b", (slice(2, 8), slice(1, 3), slice(0, 1))), state["exp_avg.b"][2:8, 1:3, :1]
    )
    assert json.loads((whole / HISTORY).read_text()) == history(7)
    assert read_history(whole).losses == history(7)["losses"]


def test_an_emitted_program_reads_one_of_its_own_model(whole: Path) -> None:
    reader = open_checkpoint(whole, {"a": (5,), "b": (2, 7)})
    state = Small(0).state["params.b"]
    assert np.array_equal(reader.box("params.b", ((0, 2), (3, 6))), state[:, 3:6]) and reader.read_bytes == 4 * 6
    with pytest.raises(ValueError, match="has 5 of 6 elements"):
        reader.box("params.a", ((0, 6),))
    for shapes in ({"a": (4,)}, {"c": (5,)}):
        with pytest.raises(ValueError, match="there and"):
            open_checkpoint(whole, shapes)


def test_torchs_own_reader_reads_it(whole: Path) -> None:
    """torch.distributed.checkpoint puts the boxes together from the files alone."""
    code = """
import sys, numpy as np, torch, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageReader
state = {"params.a": torch.zeros(5), "params.b": torch.zeros(2, 7), "exp_avg.b": torch.zeros(9, 3, 2)}
dcp.load(state, storage_reader=HuggingFaceStorageReader(sys.argv[1]), no_dist=True)
np.savez(sys.argv[2], **{name: t.numpy() for name, t in state.items()})
"""
    out = whole.parent / "read.npz"
    done = subprocess.run([sys.executable, "-c", code, str(whole), str(out)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = np.load(out)
    assert all(np.array_equal(found[name], array) for name, array in Small(0).state.items())


def flip(path: Path, at: float) -> None:
    """Turn one bit, at a share of the file's length."""
    data = bytearray(path.read_bytes())
    data[int(at * (len(data) - 1))] ^= 4
    path.write_bytes(data)


def part(checkpoint: Path) -> Path:
    return sorted(checkpoint.glob("part-*"))[1]


def later(checkpoint: Path) -> None:
    """A manifest as another version would write it: whole, and of a format unknown here."""
    from planc.trainer.checkpoint import manifest as manifests

    fields = json.loads((checkpoint / NAME).read_text()) | {"format": "planc.checkpoint/2", "news": 1}
    del fields["sha256"]
    (checkpoint / NAME).write_text(json.dumps({**fields, "sha256": manifests._sha256(fields)}))


DAMAGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a bit of the values": ("E1021", lambda c: flip(part(c), 0.99)),
    "a bit of a part's head": ("E1021", lambda c: flip(part(c), 0.1)),
    "a bit of the history": ("E1021", lambda c: flip(c / HISTORY, 0.8)),
    "a digit of the manifest": ("E1021", lambda c: flip(c / NAME, 0.5)),
    "the manifest's own sum": ("E1021", lambda c: flip(c / NAME, 0.98)),
    "half a part": ("E1021", lambda c: os.truncate(part(c), part(c).stat().st_size // 2)),
    "an empty part": ("E1021", lambda c: os.truncate(part(c), 0)),
    "half a manifest": ("E1021", lambda c: os.truncate(c / NAME, 500)),
    "a part too long": ("E1021", lambda c: part(c).write_bytes(part(c).read_bytes() + b"0")),
    "no part": ("E1019", lambda c: part(c).unlink()),
    "no history": ("E1019", lambda c: (c / HISTORY).unlink()),
    "no manifest": ("E1019", lambda c: (c / NAME).unlink()),
    "a later version": ("E1022", later),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_and_nothing_is_touched(whole: Path, damage: str) -> None:
    code, hurt = DAMAGES[damage]
    hurt(whole)
    before = {p: p.read_bytes() for p in whole.iterdir()}
    with pytest.raises(PlanError) as raised:
        folder.verify(whole)
    assert [d.code for d in raised.value.diagnostics] == [code]
    assert {p: p.read_bytes() for p in whole.iterdir()} == before


def test_every_flipped_bit_of_a_manifest_is_found(whole: Path) -> None:
    text = (whole / NAME).read_bytes()
    read(text.decode())
    for at in range(0, len(text), 37):
        hurt = text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :]
        try:
            changed = json.loads(hurt.decode())
        except ValueError:
            changed = None
        if changed != json.loads(text):  # a space for another space is no other manifest
            with pytest.raises(ValueError, match=r".+"):
                read(hurt.decode())


def test_a_checkpoint_under_another_steps_name_is_refused(whole: Path) -> None:
    other = whole.parent / "step-00000099"
    whole.rename(other)
    with pytest.raises(PlanError) as raised:
        folder.verify(other)
    assert [d.code for d in raised.value.diagnostics] == ["E1021"]


def test_a_name_with_other_digits_is_no_checkpoint(whole: Path) -> None:
    before = folder.stored_checkpoints(whole.parent)
    (whole.parent / "step-\u0660\u0660\u0660\u0660\u0660\u0660\u0669\u0669").mkdir()
    assert folder.stored_checkpoints(whole.parent) == before


def test_boxes_that_do_not_make_up_a_tensor(whole: Path) -> None:
    found = folder.read_manifest(whole)
    stored = found.tensors["exp_avg.b"]
    short = found.model_copy(update={"tensors": {"exp_avg.b": stored.model_copy(update={"boxes": stored.boxes[1:]})}})
    (whole / NAME).write_text(short.text())
    with pytest.raises(PlanError, match="E1019"):
        folder.verify(whole)


def test_the_newest_few_are_kept(tmp_path: Path) -> None:
    saved(tmp_path, 2, 4, 6, 8, keep=2)
    assert [k.step for k in folder.stored_checkpoints(tmp_path)] == [6, 8]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000006", "step-00000008"]


def test_a_step_saved_again_does_not_take_the_place_of_the_first(tmp_path: Path) -> None:
    saved(tmp_path, 2)
    saved(tmp_path, 2)
    assert [k.path.name for k in folder.stored_checkpoints(tmp_path)] == ["step-00000002", "step-00000002.1"]


def test_later_steps_are_put_aside_not_removed(tmp_path: Path) -> None:
    saved(tmp_path, 2, 4)
    folder.put_aside(tmp_path, 2)
    assert [k.step for k in folder.stored_checkpoints(tmp_path)] == [2]
    assert folder.verify(tmp_path / "aside-step-00000004-0").step == 4


@pytest.mark.parametrize("broken", [0, 2])
def test_a_full_disk_costs_nothing_that_is_there(tmp_path: Path, broken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, 1)
    whole_write = parts.write

    def write(path: Path, rank: int, *rest: Any) -> object:
        if rank == broken:
            (path / f"part-{rank:05}-00000.safetensors").write_bytes(b"half")
            raise OSError(28, "No space left on device")
        return whole_write(path, rank, *rest)

    monkeypatch.setattr(parts, "write", write)
    (news,) = saved(tmp_path, 2)
    assert isinstance(news, Failed)
    assert "No space left" in news.why
    assert broken == 0 or f"rank {broken}" in news.why
    assert [k.step for k in folder.stored_checkpoints(tmp_path)] == [1]
    assert folder.verify(tmp_path / "step-00000001").step == 1
    monkeypatch.undo()
    (news,) = saved(tmp_path, 3)
    assert isinstance(news, Saved), "the next save is tried as usual"
    assert {p.name for p in tmp_path.iterdir()} == {"step-00000001", "step-00000003"}


def test_too_little_room_is_seen_before_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _path: type("Usage", (), {"free": 10}))
    (news,) = saved(tmp_path, 1)
    assert isinstance(news, Failed)
    assert "10 are free" in news.why


def test_a_rank_that_never_writes_is_named(tmp_path: Path) -> None:
    saver = Saver(cast(Session, Small(0)), Where(tmp_path, "attempt", 0, asynchronous=False, timeout_s=0.1))
    saver.save(manifest(1), history(1))
    (news,) = saver.news()
    assert isinstance(news, Failed)
    assert "rank-00001 has not written" in news.why
    assert folder.stored_checkpoints(tmp_path) == []


def test_what_training_changes_while_a_checkpoint_is_written_is_not_in_it(tmp_path: Path) -> None:
    session = Small(0, 1)
    before = {name: array.copy() for name, array in session.state.items()}
    saver: Any = Saver(cast(Session, session), where(tmp_path))
    gate = threading.Event()
    slow = saver._write_part

    def waiting(*arguments: Any) -> None:
        gate.wait(5)
        slow(*arguments)

    saver._write_part = waiting
    saver.save(manifest(1), history(1))
    for array in session.state.values():
        array += 1
    gate.set()
    saver.finish()
    reader = parts.Reader(tmp_path / "step-00000001", folder.verify(tmp_path / "step-00000001").tensors)
    for name, array in before.items():
        assert np.array_equal(reader(name, tuple(slice(None) for _ in array.shape)), array)


ENDINGS = [
    ("write", "parts"),
    ("_wait_for_ranks", "Saver"),
    ("free_name", "folders"),
    ("_sync", "saver"),
    ("prune", "folders"),
]
"""Where a process is ended while it saves: before this call, of this module."""


@pytest.mark.parametrize(("call", "of"), ENDINGS)
def test_a_process_ended_while_it_saves_leaves_the_last_one_whole(tmp_path: Path, call: str, of: str) -> None:
    """`os._exit` in the middle, as kill -9 would: the checkpoint is whole or not there."""
    code = f"""
import os, sys
sys.path[:0] = [{str(ROOT / "tests" / "trainer")!r}, {str(ROOT)!r}]
from pathlib import Path
from planc.trainer.checkpoint import directory as folders, tensor_files as parts, writer as saver
from planc.trainer.checkpoint.writer import Saver
from test_checkpoint import Small, history, manifest, where
one = Saver(Small(0, 1), where(Path({str(tmp_path)!r}), 1))
one.save(manifest(1), history(1))
one.finish()
setattr({of}, {call!r}, lambda *a: os._exit(9))
one.save(manifest(2), history(2))
one.finish()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 9, done.stderr
    newest, found, notes = folder.newest_whole(tmp_path)
    assert found.step == newest.step
    assert notes == []
    assert found.step == (2 if call == "prune" else 1)
    folder.tidy(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {k.path.name for k in folder.stored_checkpoints(tmp_path)}


def test_tidying_after_a_save_leaves_the_next_one_that_others_have_begun(tmp_path: Path) -> None:
    for step in (3, 9):
        (tmp_path / f"{folder.WRITING}{step:08}-attempt").mkdir()
    saved(tmp_path, 5)
    assert {p.name for p in tmp_path.iterdir()} == {"step-00000005", f"{folder.WRITING}00000009-attempt"}
    folder.tidy(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"step-00000005"}


def test_one_run_at_a_time(tmp_path: Path) -> None:
    first, second = folder.Lock(tmp_path), folder.Lock(tmp_path)
    assert first.taken()
    assert not second.taken(wait_s=0.1)
    first.release()
    assert second.taken(wait_s=0.1)
