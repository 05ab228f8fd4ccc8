"""Checkpoints that somebody made up, with every sum made anew: exactly what a run saves, or refused with a code."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from planc.diag import PlanError
from planc.trainer.checkpoint import directory as folder
from planc.trainer.checkpoint import manifest as manifests
from planc.trainer.checkpoint.manifest import HISTORY, NAME, Stored, StoredBox
from planc.trainer.checkpoint.writer import Saved
from tests.trainer.test_checkpoint import history, saved

Fields = dict[str, Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (news,) = saved(tmp_path_factory.mktemp("made"), 7)
    assert isinstance(news, Saved)
    return news.path


@pytest.fixture
def whole(made: Path, tmp_path: Path) -> Path:
    """A checkpoint of three ranks that may be spoilt."""
    return shutil.copytree(made, tmp_path / made.name)


def forge(checkpoint: Path, change: Callable[[Fields], object]) -> None:
    """Change the manifest's fields, with an honest sum after."""
    fields = json.loads((checkpoint / NAME).read_text())
    del fields["sha256"]
    change(fields)
    (checkpoint / NAME).write_text(json.dumps({**fields, "sha256": manifests._sha256(fields)}))


def replaced(checkpoint: Path, name: str, data: bytes) -> None:
    """Other bytes for one file, and the manifest told of them."""
    (checkpoint / name).write_bytes(data)
    told = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    forge(checkpoint, lambda f: f["files"].update({name: told}))


def set_at(*place: Any, to: Any) -> Callable[[Path], None]:
    """Sets one value of the manifest."""

    def change(fields: Fields) -> None:
        inner: Any = fields
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = to

    return lambda checkpoint: forge(checkpoint, change)


def file_of(checkpoint: Path, tensor: str) -> str:
    name: str = json.loads((checkpoint / NAME).read_text())["tensors"][tensor]["boxes"][0]["file"]
    return name


def with_values(dtype: str) -> Callable[[Path], None]:
    """One file's tensors in another dtype."""

    def change(checkpoint: Path) -> None:
        from safetensors.numpy import load

        name = file_of(checkpoint, "exp_avg.b")
        values = {n: a.astype(dtype) for n, a in load((checkpoint / name).read_bytes()).items()}
        replaced(checkpoint, name, save(values))

    return change


def with_header(header: bytes, length: int | None = None) -> Callable[[Path], None]:
    """One file with this header before its values."""

    def change(checkpoint: Path) -> None:
        name = file_of(checkpoint, "exp_avg.b")
        size = len(header) if length is None else length
        replaced(checkpoint, name, size.to_bytes(8, "little") + header + bytes(400))

    return change


def with_history(**changes: Any) -> Callable[[Path], None]:
    return lambda checkpoint: replaced(checkpoint, HISTORY, json.dumps({**history(7), **changes}).encode())


def entry(**changes: Any) -> bytes:
    told = {"dtype": "F32", "shape": [3, 3, 2], "data_offsets": [0, 72], **changes}
    return json.dumps({"exp_avg.b": told}).encode()


FLOATS = {"exp_avg.b": {"dtype": "F32", "shape": [3, 3, 2], "data_offsets": [0, 72]}}
BOX = ("tensors", "exp_avg.b", "boxes", 0)
FORGED: dict[str, Callable[[Path], None]] = {
    "a box before the start": set_at(*BOX, "offset", to=[-1, 0, 0]),
    "a box far beyond the end": set_at(*BOX, "offset", to=[10**18, 0, 0]),
    "a box beyond the end by one": set_at(*BOX, "offset", to=[9, 0, 0]),
    "a box of negative size": set_at(*BOX, "size", to=[-1, -3, 2]),
    "a box of fewer dims": set_at(*BOX, "offset", to=[0, 0]),
    "a box of a thousand dims": set_at(*BOX, "offset", to=[0] * 1000),
    "a box over another": set_at(*BOX, "offset", to=[3, 0, 0]),
    "a box in a file elsewhere": set_at(*BOX, "file", to="../x.safetensors"),
    "a box in no file of the checkpoint": set_at(*BOX, "file", to="x.safetensors"),
    "a box in the file of another": set_at(*BOX, "file", to="part-00002-00000.safetensors"),
    "a shape without bound": set_at("tensors", "exp_avg.b", "shape", to=[10**30, 3, 2]),
    "a file elsewhere": set_at("files", "../passwd", to={"bytes": 1, "sha256": "0" * 64}),
    "an absolute file": set_at("files", "/etc/passwd", to={"bytes": 1, "sha256": "0" * 64}),
    "a file with a line break in its name": set_at("files", "a\nb", to={"bytes": 1, "sha256": "0" * 64}),
    "a hidden file": set_at("files", ".lock", to={"bytes": 1, "sha256": "0" * 64}),
    "a sum that is none": set_at("files", HISTORY, "sha256", to="x"),
    "a file of negative size": set_at("files", HISTORY, "bytes", to=-1),
    "updates below zero": set_at("optimizer_steps", to=-5),
    "more updates than steps": set_at("optimizer_steps", to=8),
    "a step without bound": set_at("step", to=10**30),
    "a step that is no number": set_at("step", to="7"),
    "another position": set_at("position", "step", to=6),
    "a position below zero": set_at("position", "sequences", to=-1),
    "tokens of no sequence": set_at("position", "sequences", to=0),
    "sequences of parts of tokens": set_at("position", "sequences", to=2),
    "a mesh of no rank": set_at("mesh", to={"dp": 0}),
    "a field of another's": set_at("news", to=1),
    "a text without bound": set_at("model", to="m" * 100_000),
    "float16 values": with_values("float16"),
    "float64 values": with_values("float64"),
    "int32 values": with_values("int32"),
    "a header that is no JSON": with_header(b"no"),
    "a header that is a list": with_header(b"[]"),
    "a header nested too deeply": with_header(b"[" * 100_000),
    "a header longer than its file": with_header(b"{}", 10**6),
    "a header without bound": with_header(b"{}", 2**63),
    "a header of nothing": with_header(b"{}"),
    "values beyond the file's end": with_header(entry(data_offsets=[400, 472])),
    "values of another length": with_header(entry(data_offsets=[0, 71])),
    "values before the file's start": with_header(entry(data_offsets=[-72, 0])),
    "metadata that is no text": with_header(json.dumps({"__metadata__": {"format": 4096}, **FLOATS}).encode()),
    "values that nothing describes": with_header(json.dumps(FLOATS).encode()),
    "a shape that is no list": with_header(entry(shape="332")),
    "a shape of floats": with_header(entry(shape=[3.0, 3.0, 2.0])),
    "a dtype that is a list": with_header(entry(dtype=["F32"])),
    "a tensor that is no object": with_header(b'{"exp_avg.b": 1}'),
    "a history of other keys": lambda c: replaced(c, HISTORY, b'{"losses": [], "more": 1}'),
    "a history that is a list": lambda c: replaced(c, HISTORY, b"[]"),
    "a history nested too deeply": lambda c: replaced(c, HISTORY, b"[" * 100_000),
    "a history that is no text": lambda c: replaced(c, HISTORY, b"\xff\xfe"),
    "a shorter history": with_history(losses=[1.0] * 6),
    "a longer history": with_history(**history(8)),
    "losses that are no numbers": with_history(losses=["a"] * 7),
    "losses that are not finite": with_history(losses=[float("nan")] * 7),
    "losses that are words of logic": with_history(losses=[True] * 7),
    "losses beyond fp32": with_history(losses=[1e308] * 7),
    "norms below zero": with_history(grad_norms=[-1.0] * 7),
    "seconds beyond 64 bits": with_history(seconds=[10**400] * 7),
    "losses that stand twice": lambda c: replaced(
        c, HISTORY, (c / HISTORY).read_bytes().replace(b"{", b'{"losses": [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], ', 1)
    ),
    "held-out losses of later steps": with_history(held_out={"8": 1.0}),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_checkpoint_is_refused(name: str, whole: Path) -> None:
    FORGED[name](whole)
    with pytest.raises(PlanError) as raised:
        folder.verify(whole)
    (found,) = raised.value.diagnostics
    assert found.code in ("E1019", "E1021")
    assert len(found.message) < 500


def test_the_forger_passes_where_nothing_is_forged(whole: Path) -> None:
    forge(whole, lambda fields: None)
    name = file_of(whole, "exp_avg.b")
    replaced(whole, name, (whole / name).read_bytes())
    with_history()(whole)
    assert folder.verify(whole).step == 7


def test_a_manifest_nested_too_deeply_is_refused(whole: Path) -> None:
    for text in ("[" * 100_000, '{"sha256": "", "format": ' + "[" * 100_000 + "]" * 100_000 + "}"):
        (whole / NAME).write_text(text)
        with pytest.raises(PlanError, match="E1021"):
            folder.verify(whole)


@pytest.mark.parametrize("name", [NAME, HISTORY, "part-00001-00000.safetensors"])
def test_a_pipe_in_a_checkpoint_is_not_waited_for(name: str, whole: Path) -> None:
    (whole / name).unlink()
    os.mkfifo(whole / name)
    with pytest.raises(PlanError, match=r"E1019|E1021"):
        folder.verify(whole)


def test_a_link_out_of_a_checkpoint_is_refused(whole: Path) -> None:
    name = file_of(whole, "exp_avg.b")
    (whole / name).rename(whole.parent / "elsewhere")
    (whole / name).symlink_to(whole.parent / "elsewhere")
    with pytest.raises(PlanError, match="E1021"):
        folder.verify(whole)


def test_links_in_a_folder_of_checkpoints_are_not_followed(tmp_path: Path) -> None:
    """A folder from another team: tidying and pruning remove the links, and never what they lead to."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine").write_text("mine")
    runs = tmp_path / "runs"
    runs.mkdir()
    for name in (f"{folder.WRITING}00000003-alone", f"{folder.LEAVING}x", "step-00000001"):
        (runs / name).symlink_to(other)
    folder.tidy(runs)
    folder.remove(runs / "step-00000001")
    assert list(runs.iterdir()) == []
    assert (other / "mine").read_text() == "mine"
    (runs / folder.LOCK).symlink_to(tmp_path / "made")
    with pytest.raises(OSError, match="symbolic links"):
        folder.Lock(runs).taken(wait_s=0)
    assert not (tmp_path / "made").exists()


# Boxes.

SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=3)


@given(st.data())
def test_boxes_are_whole_exactly_when_each_element_is_in_one(data: st.DataObject) -> None:
    """Against counting every element, over boxes that are often nearly a division."""
    shape = data.draw(SHAPES)
    cuts = [sorted({0, n, *data.draw(st.sets(st.integers(0, n), max_size=2))}) for n in shape]
    cells = list(product(*(list(pairwise(c)) for c in cuts)))
    boxes = [StoredBox(file="f", offset=tuple(a for a, _ in c), size=tuple(b - a for a, b in c)) for c in cells]
    if data.draw(st.booleans()):
        del boxes[data.draw(st.integers(0, len(boxes) - 1))]
    for _ in range(data.draw(st.integers(0, 2))):
        offset = [data.draw(st.integers(0, n)) for n in shape]
        size = [data.draw(st.integers(0, n - o)) for n, o in zip(shape, offset, strict=True)]
        boxes.append(StoredBox(file="f", offset=tuple(offset), size=tuple(size)))
    held = np.zeros(shape, int)
    for box in boxes:
        held[tuple(slice(o, o + n) for o, n in zip(box.offset, box.size, strict=True))] += 1
    assert Stored(shape=tuple(shape), boxes=tuple(boxes)).is_whole() == bool((held == 1).all())


@pytest.mark.parametrize(
    "boxes",
    [((0,), (0,)), ((2,), (2,)), ((1,), (1,)), ((0, 0), (0, 2), (2, 0), (2, 0)), ((0, 0), (1, 1), (2, 2), (0, 2))],
)
def test_boxes_of_as_many_elements_as_a_tensor_may_lie_on_each_other(boxes: tuple[tuple[int, ...], ...]) -> None:
    """Boxes of 2, or of 2 x 2, in a tensor of 4, or of 4 x 4."""
    dims = len(boxes[0])
    laid = tuple(StoredBox(file="f", offset=offset, size=(2,) * dims) for offset in boxes)
    assert not Stored(shape=(4,) * dims, boxes=laid).is_whole()


@pytest.mark.parametrize("place", ["versions", "tensors", "mesh", "history"])
def test_a_refusal_quotes_no_name_without_an_end(whole: Path, place: str) -> None:
    """Keys of 100,000 characters, which the refusal of their values names."""
    key = "k" * 100_000
    if place == "history":
        told = json.loads((whole / HISTORY).read_text())
        replaced(whole, HISTORY, json.dumps({**told, "held_out": {key: 1.0}}).encode())
    else:
        forge(whole, lambda fields: fields[place].update({key: None}))
    with pytest.raises(PlanError) as raised:
        folder.verify(whole)
    assert all(len(d.message) <= 1000 for d in raised.value.diagnostics) and len(str(raised.value)) < 1500
