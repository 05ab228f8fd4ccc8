"""Schedules in CSV files: those of planc's own schedules with cells moved, changed, left out or doubled."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path

from planc.diag.text import render
from planc.driver import examine
from tests.fuzz.edits import Edit, as_bytes, as_input, damage, damaged
from tests.fuzz.kinds import Kind
from tests.fuzz.kinds.plans import lowered

PLAN = """plan x
model     llama_tiny(layers = 8)
batch     16 x 128 tokens microbatch 2
cluster   4 x cpu_local
mesh      pp 4
split     layers over pp as csv("s.csv")
optimizer adamw
compute   fp32 reduce fp32
"""
CELLS = (
    "0F0", "0B0", "1I2", "1W2", "(0F1;1B0)OVERLAP_F_B", "0F99999999", "9999999F0", "", " ", "0X0", "-1F0", "٣F0",
    "(0F1;)OVERLAP_F_B", "((0F0;0B0)OVERLAP_F_B;1F0)OVERLAP_F_B", "0SEND_F1", "7UNSHARD", '"0F0"', "\x1b[2J", "3F7",
)  # fmt: skip


@cache
def tables() -> tuple[str, ...]:
    """Good files for four ranks and eight microbatches: one or two stages a rank, whole backwards or in two halves."""
    from planc.pipeline.actions import unrolled
    from planc.pipeline.schedule import ScheduleShape
    from planc.pipeline.schedules import schedules

    found = []
    for name, chunks in (("gpipe", 1), ("1f1b", 1), ("zbv", 2), ("dualpipev", 2), ("interleaved_1f1b", 2)):
        shape = ScheduleShape(ranks=4, chunks=chunks, microbatches=8)
        lists = [unrolled(schedules()[name].rank_actions(shape, rank)) for rank in range(4)]
        found.append("\n".join(",".join(a.text for a in row) for row in lists) + "\n")
    return tuple(found)


def make(seed: int, index: int) -> bytes:
    rng = random.Random(f"{seed}:{index}")
    base = rng.randrange(len(tables()))
    columns = max(len(line.split(",")) for line in tables()[base].splitlines())
    edits: list[Edit] = [{"do": "base", "to": base}]
    for _ in range(rng.choice((0, 1, 1, 2, 3, 5))):
        place = {"row": rng.randrange(4), "column": rng.randrange(columns)}
        does = rng.choice(("swap", "swap", "late", "late", "put", "set", "delete", "again", "row"))
        edits.append({"do": does, **place, "to": rng.choice(CELLS), "by": rng.choice((1, 1, 2, 3, columns))})
    if rng.random() < 0.1:
        edits.append(damage(rng))
    return as_input(edits)


def written(edits: list[Edit]) -> str:
    base = next((e["to"] for e in edits if e["do"] == "base"), 0)
    rows = [line.split(",") for line in tables()[base].splitlines()]
    for edit in edits:
        if edit["do"] not in ("base", "text") and edit["row"] < len(rows):
            _change(rows, edit)
    return damaged("\n".join(map(",".join, rows)) + "\n", edits)


def _change(rows: list[list[str]], edit: Edit) -> None:
    row, does = rows[edit["row"]], edit["do"]
    place = min(edit["column"], len(row) - 1)
    other = min(place + edit["by"], len(row) - 1)
    if does == "row":
        rows.insert(edit["row"], list(row)) if edit["by"] % 2 else rows.pop(edit["row"])
    elif place < 0:
        row.append(edit["to"])
    elif does == "swap":
        row[place], row[other] = row[other], row[place]
    elif does == "late":  # later by some cells: often still a schedule
        row.insert(place, "")
    elif does == "put":
        row.insert(place, edit["to"])
    elif does == "set":
        row[place] = edit["to"]
    elif does == "delete":
        del row[place]
    else:
        row.insert(other, row[place])


def run(data: bytes, folder: Path, index: int) -> tuple[str, ...]:
    (folder / "s.csv").write_bytes(as_bytes(written(json.loads(data))))
    (folder / "x.plan").write_text(PLAN)
    found = examine(folder / "x.plan")
    json.dumps(found.report.to_json(), allow_nan=False)
    shown = render(found.report.diagnostics, found.sources)
    assert all(c.isprintable() or c == "\n" for c in shown), "a control character is printed"
    if found.sharded is None:
        codes = sorted({d.code for d in found.report.diagnostics if d.severity == "error"})
        assert codes, "neither a cost nor a finding"
        return ("refused", *(f"refused with {code}" for code in codes))
    return "checked" if found.report.step is None else "costed", lowered(found, index)


def warm() -> None:
    tables()


KIND = Kind(
    "schedules", ".json", "items", 20_000, make, run, warm,
    deep=("refused with E0411", "refused with E0412", "costed"),
)  # fmt: skip
