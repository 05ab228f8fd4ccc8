"""Checkpoints: the manifest, the history and the headers of the values, with the sums made anew or not."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from planc.diag import PlanError
from planc.trainer.checkpoint import directory
from planc.trainer.checkpoint import manifest as manifests
from planc.trainer.checkpoint.manifest import HISTORY, NAME, Manifest
from planc.trainer.checkpoint.tensor_files import Reader
from tests.fuzz.edits import Edit, as_bytes, as_input, damage, damaged, edited, made
from tests.fuzz.kinds import Kind

FOLDERS = ("step-00000007", "step-00000007", "step-00000007", "step-00000008", "step-00000007.1", "other")


@cache
def good() -> dict[str, Any]:
    """A checkpoint of three ranks: its manifest, history, and each file of values as header and values."""
    from tests.trainer.test_checkpoint import saved

    with tempfile.TemporaryDirectory() as top:
        (news,) = saved(Path(top), 7)
        path: Path = getattr(news, "path")  # noqa: B009 (a failed save has no path)
        fields = json.loads((path / NAME).read_text())
        del fields["sha256"]
        files = {name: (path / name).read_bytes() for name in fields["files"] if name != HISTORY}
        return {
            NAME: fields,
            HISTORY: json.loads((path / HISTORY).read_text()),
            "values": {n: _values(files[n]) for n in files},
        }


def _values(data: bytes) -> dict[str, Any]:
    length = int.from_bytes(data[:8], "little")
    return {"length": length, "header": json.loads(data[8 : 8 + length]), "hex": data[8 + length :].hex()}


def make(seed: int, index: int) -> bytes:
    rng = random.Random(f"{seed}:{index}")
    under = rng.choice(([NAME], [NAME], [NAME, "tensors"], [HISTORY], ["values"], ["values"]))
    edits: list[Edit] = [{"do": "folder", "to": rng.choice(FOLDERS)}]
    edits += made(rng, good(), under)
    if rng.random() < 0.2:
        edits.append({**damage(rng), "file": rng.choice([NAME, HISTORY])})
    if rng.random() < 0.15:
        edits.append({"do": "old sums"})
    if rng.random() < 0.1:
        edits.append({"do": rng.choice(("link", "gone")), "file": rng.choice([NAME, HISTORY, *good()["values"]])})
    return as_input(edits)


def write(edits: list[Edit], path: Path) -> None:
    """The checkpoint that the edits make. Sums and sizes are those of what is written, unless they shall be old."""
    path.mkdir()
    tree, anew = edited(good(), edits), not any(e["do"] == "old sums" for e in edits)
    files = {HISTORY: _text(tree[HISTORY], HISTORY, edits)}
    values = tree["values"] if isinstance(tree["values"], dict) else {}
    files |= {name: _file(value) for name, value in values.items() if isinstance(value, dict) and _is_plain(name)}
    fields = tree[NAME]
    for name, data in files.items():
        (path / name).write_bytes(data)
        if anew and isinstance(told := _inner(fields, "files", name), dict):
            told |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    if isinstance(fields, dict):
        fields = {**fields, "sha256": manifests._sha256(fields if anew else good()[NAME])}
    (path / NAME).write_bytes(_text(fields, NAME, edits))
    for edit in edits:
        if edit["do"] in ("link", "gone") and (path / edit["file"]).exists():
            (path / edit["file"]).rename(path.parent / "elsewhere")
            if edit["do"] == "link":
                (path / edit["file"]).symlink_to(path.parent / "elsewhere")


def _inner(fields: Any, *names: str) -> Any:
    for name in names:
        fields = fields.get(name) if isinstance(fields, dict) else None
    return fields


def _is_plain(name: str) -> bool:
    return 0 < len(name) < 100 and name.isascii() and name.isprintable() and "/" not in name and name.strip(".") != ""


def _text(value: Any, name: str, edits: list[Edit]) -> bytes:
    return as_bytes(damaged(json.dumps(value), [e for e in edits if e.get("file") == name]))


def _file(value: dict[str, Any]) -> bytes:
    """A safetensors file. Its length is that of its header unless an edit says another one."""
    header = json.dumps(value.get("header")).encode()
    said, known = value.get("length"), {v["length"] for v in good()["values"].values()}
    length = said if isinstance(said, int) and said not in known else len(header)
    numbers = value.get("hex")
    held = bytes.fromhex(numbers) if isinstance(numbers, str) and _is_hex(numbers) else b""
    return (length % 2**64).to_bytes(8, "little") + header + held


def _is_hex(text: str) -> bool:
    return len(text) % 2 == 0 and all(c in "0123456789abcdefABCDEF" for c in text)


def run(data: bytes, folder: Path, index: int) -> tuple[str, ...]:
    """Verify it, and where it is whole read every tensor: each value must be one that a file holds."""
    edits = json.loads(data)
    name = next((e["to"] for e in edits if e["do"] == "folder"), FOLDERS[0])
    path = folder / "run" / name
    path.parent.mkdir()
    write(edits, path)
    try:
        manifest = directory.verify(path)
    except PlanError as error:
        (found,) = error.diagnostics
        assert found.code in ("E1019", "E1021", "E1022"), found.code
        assert len(found.message) < 600, "a long message"
        return (f"refused with {found.code}",)
    reader = Reader(path, manifest.tensors)
    for tensor, stored in manifest.tensors.items():
        values = reader(tensor, tuple(slice(None) for _ in stored.shape))
        assert values.shape == stored.shape, "another shape"
        assert _from_files(values, path, manifest, tensor), "values that no file holds"
    if directory.stored_checkpoints(path.parent):
        directory.newest_whole(path.parent)
    shutil.rmtree(path.parent)
    return ("whole",)


def _from_files(values: Any, path: Path, manifest: Manifest, tensor: str) -> bool:
    """True when the values are, in some order, those of the tensor's boxes in the files, bit by bit."""
    from safetensors.numpy import load_file

    parts = [load_file(path / box.file)[tensor].reshape(-1) for box in manifest.tensors[tensor].boxes]
    held = np.concatenate(parts) if parts else np.zeros(0, np.float32)
    return np.array_equal(np.sort(held.view(np.uint32)), np.sort(values.reshape(-1).view(np.uint32)))


def warm() -> None:
    good()


KIND = Kind(
    "checkpoints", ".json", "items", 20_000, make, run, warm,
    deep=("whole", "refused with E1019", "refused with E1021"),
)  # fmt: skip
