"""Token files: Megatron-LM's index beside its tokens, numpy files, plain ones, and preset settings that read them."""

from __future__ import annotations

import io
import json
import random
import struct
from functools import cache
from pathlib import Path

import numpy as np

from planc.trainer.data.tokens.files import MEGATRON_MAGIC, DataError, Stream, token_files
from planc.trainer.data.tokens.source import TokenSource
from tests.fuzz.edits import Edit, as_input
from tests.fuzz.kinds import Kind

NUMBERS = (0, 1, 2, 3, 7, 8, 127, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1)
FORMATS = ("megatron", "megatron", "megatron", "npy", "npy", "plain")
DTYPES = ("uint16", "int32", "uint8", "uint32")


@cache
def good(kind: str) -> dict[str, bytes]:
    """The files of 600 tokens in one of the formats."""
    tokens = np.arange(600) % 250
    if kind == "npy":
        file = io.BytesIO()
        np.save(file, tokens.astype(np.uint16))
        return {"x.npy": file.getvalue()}
    if kind == "plain":
        return {"x.bin": tokens.astype("<u2").tobytes()}
    sizes, starts = np.asarray([100, 200, 300], "<i4"), np.asarray([0, 200, 600], "<i8")
    documents = np.asarray([0, 1, 3], "<i8")
    head = MEGATRON_MAGIC + struct.pack("<QBQQ", 1, 8, len(sizes), len(documents))
    return {
        "x.bin": tokens.astype("<u2").tobytes(),
        "x.idx": head + b"".join(a.tobytes() for a in (sizes, starts, documents)),
    }


def make(seed: int, index: int) -> bytes:
    """Bytes, numbers of 1 to 8 bytes and cuts, mostly where the headers are."""
    rng = random.Random(f"{seed}:{index}")
    kind = rng.choice(FORMATS)
    edits: list[Edit] = [{"do": "base", "to": kind, "dtype": rng.choice(DTYPES)}]
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        name = rng.choice([n for n in good(kind) for _ in range(1 if n.endswith(".bin") else 5)])
        most = len(good(kind)[name])
        place = rng.choice((9, 17, 18, 26, 34, rng.randrange(160), rng.randrange(most + 1)))
        does = rng.choice(("number", "number", "number", "bytes", "bytes", "cut", "more"))
        width = rng.choice((1, 2, 4, 8))
        value = rng.choice(NUMBERS) % 256**width
        edits.append({"do": does, "file": name, "at": place, "hex": value.to_bytes(width, "little").hex()})
        if does == "bytes":
            edits[-1]["hex"] = rng.choice(
                (b"{'", b"descr", b"|O", b"<f8", b"(-1,", b"9" * 20, b"\0", rng.randbytes(3))
            ).hex()
    return as_input(edits)


def written(edits: list[Edit], folder: Path) -> str:
    """Write the files that the edits make; the dtype of plain files."""
    base = next((e for e in edits if e["do"] == "base"), {"to": "plain", "dtype": "uint16"})
    files = dict(good(base["to"]))
    for edit in edits:
        data, place = files.get(edit.get("file", "")), edit.get("at", 0)
        if data is not None:
            files[edit["file"]] = _changed(data, edit["do"], place, bytes.fromhex(edit["hex"]))
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return str(base["dtype"])


def _changed(data: bytes, does: str, place: int, new: bytes) -> bytes:
    if does == "cut":
        return data[:place]
    if does == "more":
        return data[:place] + new + data[place:]
    return data[:place] + new + data[place + len(new) :]


def run(data: bytes, folder: Path, index: int) -> tuple[str, ...]:
    edits = json.loads(data)
    dtype = written(edits, folder)
    path = folder if index % 2 else next(p for p in sorted(folder.iterdir()) if p.suffix in (".npy", ".bin"))
    try:
        files = token_files(path, dtype)
        largest = max(f.largest() for f in files)
    except (DataError, OSError):
        return ("refused",)
    stream = Stream(files)
    size = sum(p.stat().st_size for p in folder.iterdir())
    assert 0 < len(stream) <= size, "more tokens than bytes"
    source = TokenSource(stream, "0" * 64, largest, 4, 1 + index % 64, seed=index)
    if source.refusal(1 << 31):
        return ("read",)
    for step in (1, 2, 1000):
        tokens, targets = source.batch(step)
        assert tokens.shape == targets.shape == (4, 1 + index % 64)
        assert tokens.min() >= 0 and int(tokens.max()) <= largest, "a token that the file does not hold"
    source.held_out(3)
    return "read", "batches"


KIND = Kind("tokens", ".json", "items", 20_000, make, run, deep=("refused", "batches"))
