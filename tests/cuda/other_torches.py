"""`make other-torches`: train every layout of the tests on other versions of torch, each beside one process.

    python tests/cuda/other_torches.py [--torch 2.11 --torch 2.15] [--state FILE] [LAYOUT ...]

Needs the environments of `make versions`. A row is kept for each layout that was tried on a version, and none is tried
twice, so a run that was stopped goes on. Prints what is not equal; the status is 1 where something is wrong or failed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from planc import PlanError
from planc.checks import check_plan
from planc.ir.version import version_of
from planc.lowering import lower_plan
from planc.trainer.run.launch import run
from tests.cuda.cases import LAYOUTS
from tests.cuda.family_cases import FAMILY
from tests.cuda.moe_cases import MOE
from tests.cuda.test_moe import COUNTED_TOGETHER
from tests.cuda.test_parity import BUDGET, NARROW
from tests.cuda.worker import plan_of
from tests.launches import CASE_S, CUDA, OTHER_TORCHES, START_S, VERSIONS

ROOT = Path(__file__).resolve().parents[2]
AT_ONCE = 20
"""Layouts of a launch: what one of them loses is begun anew."""
Row = dict[str, Any]


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", action="append", choices=OTHER_TORCHES, help="a version (all)")
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "other-torches.jsonl")
    parser.add_argument("layouts", nargs="*", metavar="LAYOUT", help="names (all)")
    given = parser.parse_args(words)
    layouts = given.layouts or [*LAYOUTS, *MOE, *FAMILY]
    given.state.parent.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for version in given.torch or OTHER_TORCHES:
        rows += tried(version, layouts, given.state)
    for row in rows:
        if row["found"] not in ("equal", "refused"):
            print(row["torch"], row["name"], row["found"], row["why"])
    print(dict(Counter(f"{row['torch']} {row['found']}" for row in rows)))
    return int(any(row["found"] in ("wrong", "failed") for row in rows))


def tried(version: str, layouts: list[str], state: Path) -> list[Row]:
    """The rows of these layouts on one version: those of the file `state`, and the others, which are added to it."""
    known = {(row["torch"], row["name"]): row for row in map(json.loads, _lines(state))}
    left: dict[int, list[str]] = defaultdict(list)
    for name in layouts:
        if (version, name) in known:
            continue
        if why := refusal(name, version):
            _keep(state, known, {"torch": version, "name": name, "found": "refused", "why": why})
        else:
            left[math.prod(axis.size for axis in plan_of(name).mesh.axes)].append(name)
    for processes, names in left.items():
        while names:
            trained(version, processes, names[:AT_ONCE], state, known)
            names = [name for name in names if (version, name) not in known]
    return [known[version, name] for name in layouts]


def trained(version: str, processes: int, names: list[str], state: Path, known: dict[tuple[str, str], Row]) -> None:
    """Train layouts in one launch, and keep a row of each that it came to; of the one that it failed at too."""

    def hear(rank: int, line: str) -> None:
        if rank == 0 and line.startswith("ROW "):
            row = json.loads(line[4:])
            _keep(state, known, {"torch": version, "found": (found := judged(row))[0], "why": found[1], **row})

    command = [str(VERSIONS / f"torch-{version}/bin/python"), str(CUDA), *names]
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    finished = run(command, processes, env=environment, timeout_s=START_S + CASE_S * len(names), on_line=hear)
    unanswered = [name for name in names if (version, name) not in known]
    if unanswered:
        why = finished.outputs[finished.failed_rank or 0][-2000:]
        _keep(state, known, {"torch": version, "name": unanswered[0], "found": "failed", "why": why})


def refusal(name: str, version: str) -> str:
    """The reason that no program of a layout is written for a version; empty: it is written."""
    try:
        lower_plan(check_plan(plan_of(name)), "cuda", version=version_of(version))
    except PlanError as error:
        return "; ".join(d.message for d in error.diagnostics)
    return ""


def judged(row: Row) -> tuple[str, str]:
    """`equal`, `rounding` where a layout in bf16 is a few roundings off, or `wrong`; and in which figure."""
    figures = {name: row[name] for name in ("loss", "norm", "evaluated")} | {"gradient": max(row["gradient"])}
    counted = [] if row["name"] in COUNTED_TOGETHER else row["collectives"]
    far = {name: found for name, found in figures.items() if not found <= BUDGET}
    if not (far or counted or row["dead"]):
        return "equal", ""
    narrow = any("bf16" in sentence for sentence in row["plan"])
    near = narrow and all(found <= NARROW[name] for name, found in far.items()) and not (counted or row["dead"])
    return "rounding" if near else "wrong", json.dumps([far, row["where"], counted[:3], row["dead"]])


def _keep(state: Path, known: dict[tuple[str, str], Row], row: Row) -> None:
    with state.open("a") as kept:
        kept.write(json.dumps(row) + "\n")
    known[row["torch"], row["name"]] = row


def _lines(state: Path) -> list[str]:
    """The whole lines of the state; one that a kill cut short is left out."""
    text = state.read_text() if state.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
