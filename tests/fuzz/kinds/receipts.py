"""Receipts: read, compared with a good one, drawn, and their predictions beside their measurements."""

from __future__ import annotations

import contextlib
import io
import json
import random
from pathlib import Path
from typing import Any

from planc.cli.views import accuracy_of_receipts
from planc.diag import PlanError
from planc.trainer.receipt.crosscheck import crosscheck
from planc.trainer.receipt.crosscheck_text import picture, render
from planc.trainer.receipt.receipt import read_receipt
from tests.fuzz.edits import as_bytes, as_input, damage, damaged, edited, made
from tests.fuzz.kinds import Kind

GOOD: dict[str, Any] = {
    "format": "planc.receipt/1", "plan_sha256": "0" * 64, "target": "cuda", "runtime": "torch",
    "versions": {"torch": "2.13.0", "planc": "0.1.0"}, "mesh": {"fsdp": 2, "tp": 2}, "seed": 0,
    "init_sha256": "1" * 64, "data_sha256": "2" * 64, "tokens_per_step": 1024, "dtype": "fp32",
    "course": {"lr": 1e-3, "betas": [0.9, 0.95], "seed": 0}, "features": ["fsdp", "tp"],
    "losses": [5.5, 5.25, None, 4.75], "grad_norms": [1.5, 1.25, None, 0.75], "step_time_s": 0.25,
    "peak_memory_gib": 0.5, "compile": {"uncached": 1, "scalar_reads": 0, "hlo_sha256": None}, "routing_flips": None,
    "collectives": [{"op": "all_gather", "axis": "fsdp", "count": 4, "payload_bytes": 1024}],
    "predicted": {"step_time_s": 0.2, "memory_gib": 0.4, "exposed_comm_s": 0.05},
    "measured": {
        "steps": 4, "heldout_loss_first": 5.5, "heldout_loss_last": 4.5, "heldout_bits_per_byte": 6.5,
        "heldout_losses": {"0": 5.5, "4": 4.5}, "first_step_s": 2.5, "step_time_s": 0.25, "tokens_per_s": 4096.0,
        "goodput_s": {"steps": 1.0, "startup": 2.0}, "first_gradient_norms": {"layers.0.wq": 0.5, "output": 0.25},
        "routing": {"1": [[4, 4], [3, 5]]}, "start_s": 1.5,
    },
    "goodput": 0.4,
}  # fmt: skip


def make(seed: int, index: int) -> bytes:
    rng = random.Random(f"{seed}:{index}")
    return as_input([*made(rng, GOOD), *([damage(rng)] if rng.random() < 0.15 else [])])


def run(data: bytes, folder: Path, index: int) -> tuple[str, ...]:
    edits = json.loads(data)
    paths = [folder / "good.json", folder / "other.json"]
    for path, tree in zip(paths, (GOOD, edited(GOOD, edits)), strict=True):
        text = json.dumps(tree)
        path.write_bytes(as_bytes(text if path == paths[0] else damaged(text, edits)))
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as told:
        status = accuracy_of_receipts.run([str(p) for p in paths], as_json=bool(index % 2))
    assert status in (0, 2), status
    _one_line_each(out.getvalue() + told.getvalue())
    try:
        receipts = [read_receipt(path) for path in paths]
    except PlanError as error:
        assert [d.code for d in error.diagnostics] == ["E1020"]  # noqa: PT017
        return "refused", "with an accuracy" if status == 0 else "without an accuracy"
    result = crosscheck(receipts, None if index % 3 else 1e-3)
    json.dumps(result.to_json(), allow_nan=False)
    _one_line_each(render(result, receipts, 80))
    picture(receipts)
    return (
        "compared",
        "the same" if result.ok else "apart",
        "with an accuracy" if status == 0 else "without an accuracy",
    )


def _one_line_each(text: str) -> None:
    assert all(c.isprintable() or c == "\n" for c in text), "a control character is printed"


KIND = Kind("receipts", ".json", "items", 20_000, make, run, deep=("refused", "compared", "apart", "with an accuracy"))
