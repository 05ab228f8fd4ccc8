"""Train drawn plans on both stacks beside one process: many in one launch, which is started anew after a case that
ends it."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from planc.driver import examine
from planc.ir.target import Target
from planc.trainer.run.launch import INTERRUPTED, TIMED_OUT, run
from tests.random_plans import state
from tests.random_plans.draw import draw
from tests.random_plans.pieces import Drawn
from tests.random_plans.promises import write
from tests.rows import rows_of

WORKER = Path(__file__).with_name("worker.py")
STACKS: tuple[Target, ...] = ("cuda", "xla")
BUDGET = 1e-5
"""Relative difference of losses, norms and gradients of plans in fp32."""
NARROW = 2**-4
"""The same where matmuls are in bf16, whose sums one process takes in another order."""
CASE_S, START_S = 900.0, 600.0
LAUNCH = 16
"""Plans of a launch."""
Row = dict[str, Any]


def files_of(seeds: list[int], stack: Target, folder: Path) -> dict[int, Path]:
    """Files of the drawn plans that a stack lowers and trains, by seed."""
    found = {}
    for seed in seeds:
        drawn = draw(seed, small=True)
        path = write(drawn, folder / str(seed))
        if trains(path, stack):
            found[seed] = path
    return found


def trains(path: Path, stack: Target) -> bool:
    """True if the plan has no error, the stack lowers it, and its devices are as many as a launch has."""
    report = examine(path, target=stack).report
    answer = next((t for t in report.targets if t.target == stack), None)
    return bool(answer and answer.lowers and report.devices in (2, 3, 4, 6, 8) and report.step is not None)


def ranks_of(path: Path) -> int:
    """The product of a plan's mesh."""
    mesh = next(line for line in path.read_text().splitlines() if line.startswith("mesh"))
    return prod(int(word) for word in mesh.split() if word.isdigit())


def launch(stack: Target, ranks: int, files: list[Path]) -> Iterator[tuple[Path, Row]]:
    """A row for each file. A launch that ends early is started again with the files after the one that ended it."""
    left = list(files)
    while left:
        command = [sys.executable, str(WORKER), stack, *map(str, left)]
        processes = ranks if stack == "cuda" else 1
        finished = run(command, processes, timeout_s=START_S + CASE_S * len(left))
        if finished.returncode == INTERRUPTED:
            raise KeyboardInterrupt
        rows = {row["name"]: row for row in rows_of(finished.outputs[0])}
        for path in left:
            if path.stem in rows:
                yield path, rows[path.stem]
        left = [path for path in left if path.stem not in rows]
        if left:
            output = finished.outputs[finished.failed_rank or 0]
            late = "Timeout (" in output or finished.returncode == TIMED_OUT
            yield left[0], {"name": left[0].stem, "late" if late else "failed": output[-6000:], "seconds": 0.0}
            left = left[1:]


def judged(row: Row, text: str) -> tuple[str, list[str]]:
    """The outcome of a trained plan, and what differs: `equal`, `differs`, `unpredicted`, `raised` or `hangs`."""
    if "late" in row:
        return "hangs", []
    if "failed" in row:
        return "raised", [row["failed"].strip().splitlines()[-1][:200]]
    budget = NARROW if "compute bf16" in text else BUDGET
    figures = {"gradient": max(row["gradient"]), **{k: row[k] for k in ("loss", "norm", "evaluated")}}
    figures |= {k: row[k] for k in ("parameters",) if k in row}
    over = [f"{name} {value:.1e}" for name, value in figures.items() if not value <= budget]
    if over:
        flips = [f"{row['flips']} other picks"] if row.get("flips") else []
        return "differs", [*over, str(row["where"]), *flips]
    if row.get("collectives"):
        return "unpredicted", row["collectives"][:3]
    return "equal", ["bytes of collectives"] if row.get("wire") else []


def train_all(path: Path, count: int, seconds: float, first: int) -> int:
    """Train so many more plans, half of them on each stack; returns the number that are not equal."""
    begin, trained, wrong = time.monotonic(), 0, 0
    following = dict.fromkeys(STACKS, first)
    done = {stack: state.done(path, f"trained on {stack}") for stack in STACKS}
    while trained < count and time.monotonic() - begin < seconds:
        for stack in STACKS:
            with tempfile.TemporaryDirectory() as folder:
                seeds: list[int] = []
                while len(seeds) < 2 * LAUNCH:
                    if following[stack] not in done[stack]:
                        seeds.append(following[stack])
                    following[stack] += 1
                files = files_of(seeds, stack, Path(folder))
                for seed in set(seeds) - set(files):
                    state.add(path, {"part": f"trained on {stack}", "seed": seed, "outcome": "refused"})
                by_ranks: dict[int, dict[int, Path]] = {}
                for seed, file in files.items():
                    by_ranks.setdefault(ranks_of(file) if stack == "cuda" else 1, {})[seed] = file
                for ranks, group in by_ranks.items():
                    wrong += _train(path, stack, ranks, group)
                    trained += len(group)
                    if time.monotonic() - begin > seconds:
                        break
    print(f"{trained} plans trained in {time.monotonic() - begin:.0f} s, {wrong} of them not as one process")
    return wrong


def _train(path: Path, stack: Target, ranks: int, files: dict[int, Path]) -> int:
    wrong = 0
    seed_of = {file: seed for seed, file in files.items()}
    for file, row in launch(stack, ranks, list(files.values())):
        text = file.read_text()
        outcome, codes = judged(row, text)
        line = {"part": f"trained on {stack}", "seed": seed_of[file], "outcome": outcome, "codes": codes}
        state.add(path, {**line, "seconds": round(row["seconds"], 1)})
        if outcome != "equal":
            wrong += 1
            print(f"{stack} seed {seed_of[file]}: {outcome} {codes}\n{text}", flush=True)
            if outcome in ("raised", "hangs"):
                print(row.get("failed") or row.get("late"), flush=True)
    return wrong


def trained(drawn: Drawn, stack: Target) -> tuple[str, list[str]]:
    """The outcome of one plan on a stack, for shrinking."""
    with tempfile.TemporaryDirectory() as folder:
        file = write(drawn, Path(folder))
        ranks = ranks_of(file) if stack == "cuda" else 1
        (_, row), *_ = launch(stack, ranks, [file])
        return judged(row, drawn.text)
