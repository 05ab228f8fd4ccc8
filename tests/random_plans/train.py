"""Train drawn plans on both stacks beside one process: many in one launch, which loads the stack once."""

from __future__ import annotations

import itertools
import json
import re
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from itertools import combinations
from math import prod
from pathlib import Path
from typing import Literal

from planc.driver import examine
from planc.ir.target import Target
from planc.language.build import build_file
from planc.trainer.run.launch import INTERRUPTED, TIMED_OUT, run
from tests.random_plans import state
from tests.random_plans.draw import draw
from tests.random_plans.forks import Row
from tests.random_plans.pairs import Line, Pair, features
from tests.random_plans.pieces import Drawn
from tests.random_plans.promises import write

WORKER = Path(__file__).with_name("worker.py")
STACKS: tuple[Target, ...] = ("cuda", "xla")
BUDGET, BUDGET_FP64 = 1e-5, 1e-9
"""Relative difference of losses, norms and gradients of plans in fp32."""
NARROW = 2**-4
"""The same where matmuls are in bf16, whose sums one process takes in another order."""
Work = Literal["trained", "first step"]
OPTIONS: dict[Work, tuple[str, ...]] = {"trained": (), "first step": ("--first-step",)}
WRONG: dict[Work, str] = {"trained": "not as one process", "first step": "not as predicted"}
LAUNCH = 16
"""Plans of a launch."""
FEW, SHARE = 4, 16
"""Plans with more than so many ranks cost most on cuda: one in so many of them is trained."""
OTHERS = 4
"""One in so many of the plans whose pairs of features were all trained before is trained too."""
ENOUGH = 6
"""Refusals of a pair's plans after which it is no reason to look at further ones."""
DEVICES = (2, 3, 4, 6, 8, 16)
"""Devices that a launch may have."""
PAIRS = sorted(Path(__file__).parent.glob("corpus/pairs/*.plan"))
"""Plans of pairs of features that hardly any seed has, which a test trains."""
SINCE = date(2026, 11, 28)


class Wanted:
    """Which plans a campaign trains: those with a pair of features that was not trained before, and some others. One
    that takes first steps, without its ranks, takes all."""

    def __init__(self, path: Path, stack: Target, work: Work = "trained") -> None:
        """Go on after the lines of the state file at `path`."""
        self.stack, self.trained, self.refused = stack, Counter[Pair](), Counter[Pair]()
        self.work, self.part = work, f"{work} on {stack}"
        self.done = state.done(path, self.part)
        for line in state.lines(path):
            if line["part"] == self.part:
                self.count(line)

    def count(self, line: Line) -> None:
        """Count the pairs of a plan's `line`."""
        counts = self.refused if line["outcome"] == "refused" else self.trained
        counts.update(combinations(line.get("features", ()), 2))

    def takes(self, seed: int, text: str, features: Sequence[str]) -> bool:
        """True if the plan of a seed is to be trained."""
        if self.work == "first step" or any(
            not self.trained[p] and self.refused[p] < ENOUGH for p in combinations(features, 2)
        ):
            return True
        many = self.stack == "cuda" and ranks_of(text) > FEW
        return seed % (OTHERS * SHARE if many else OTHERS) == 0


def trains(path: Path, stack: Target) -> bool:
    """True if the plan has no error, the stack lowers it, and its devices are as many as a launch has."""
    return not refusals(path, stack)


def refusals(path: Path, stack: Target) -> list[str]:
    """The reasons for which a plan is not trained, without its names and numbers."""
    found = examine(path, target=stack)
    report, plan = found.report, found.plan
    names = set(plan.mesh.every) if plan else set()
    said = [f"{d.code} {d.message}" for d in report.diagnostics if d.severity == "error"]
    reasons = [re.sub(r"\w+", lambda m: "AXIS" if m[0] in names else "N" if m[0].isdigit() else m[0], s) for s in said]
    answer = next((t for t in report.targets if t.target == stack), None)
    if report.devices not in DEVICES:
        reasons.append("more devices than a launch has" if report.devices > 1 else "one device")
    if not reasons and not (answer and answer.lowers and report.step is not None):
        reasons.append("not lowered")
    return reasons


def recorded(results: Path, stack: Target) -> Iterator[Line]:
    """Lines of the plans that the results count as trained since seeds draw what they do today, and of `corpus/pairs`:
    those that the stack still lowers."""
    runs = [r for r in tomllib.loads(results.read_text())["run"] if r["part"] == f"trained on {stack}"]
    seeds = {seed for run in runs if run["date"] >= SINCE for seed in state.seeds_of(run["seeds"])}
    with tempfile.TemporaryDirectory() as folder:
        drawn = (write(draw(seed, small=True), Path(folder) / str(seed)) for seed in sorted(seeds))
        for file in (*PAIRS, *drawn):
            plan = build_file(file, target=stack).plan
            outcome = "refused" if refusals(file, stack) else "equal"
            yield {"outcome": outcome, "features": features(plan) if plan else []}


def ranks_of(text: str) -> int:
    """The product of a plan's mesh."""
    mesh = next(line for line in text.splitlines() if line.startswith("mesh"))
    return prod(int(word) for word in mesh.split() if word.isdigit())


def launch(
    stack: Target,
    files: Sequence[Path],
    found: Callable[[Path, Row], None],
    seconds: float = float("inf"),
    work: Work = "trained",
) -> None:
    """Call `found` with a row for each file, as it is trained or takes its first step, until the time is over.

    A launch that ends early is started again with the files after the one that ended it.
    """
    left, end = {path.stem: path for path in files}, time.monotonic() + seconds

    def read(_: int, line: str) -> None:
        if line.startswith("ROW "):
            row = json.loads(line[4:])
            found(left.pop(row["name"]), row)

    while left and (seconds := end - time.monotonic()) > 0:
        command = [sys.executable, str(WORKER), stack, *OPTIONS[work], *map(str, left.values())]
        finished = run(command, 1, timeout_s=seconds, on_line=read)
        if finished.returncode == INTERRUPTED:
            raise KeyboardInterrupt
        if finished.returncode == TIMED_OUT:
            return
        if left:
            path = left.pop(next(iter(left)))
            found(path, {"name": path.stem, "failed": finished.outputs[0][-6000:], "seconds": 0.0, "cpu_s": 0.0})


def over(row: Row, text: str) -> list[str]:
    """The figures of a trained plan that are further from one process than rounding takes them."""
    narrow = "compute bf16" in text or "optimizer as bf16" in text
    budget = BUDGET_FP64 if "fp64" in row else NARROW if narrow else BUDGET
    names = ("loss", "norm", "evaluated", "parameters")
    figures = {k: max(row[k]) if k == "gradient" else row[k] for k in ("gradient", *names) if k in row}
    return [f"{name} {value:.1e}" for name, value in figures.items() if not value <= budget]


def judged(row: Row, text: str) -> tuple[str, list[str]]:
    """The outcome of a trained plan, and what differs: `equal`, `differs`, `unpredicted`, `raised` or `hangs`."""
    if "late" in row:
        return "hangs", []
    if "failed" in row:
        return "raised", [(row["failed"].strip().splitlines() or ["no output"])[-1][:200]]
    if far := over(row, text):
        flips = [f"{row['flips']} other picks"] if row.get("flips") else []
        return "differs", [*far, str(row["where"]), *flips]
    if row.get("miscounted"):
        return "differs", [f"tokens of experts in steps {row['miscounted']}"]
    if row.get("collectives"):
        return "unpredicted", row["collectives"][:3]
    return "equal", ["bytes of collectives"] if row.get("wire") else []


def train_all(
    path: Path, count: int, seconds: float, first: int, stacks: Sequence[Target] = STACKS, work: Work = "trained"
) -> int:
    """Train so many more plans, or take their first step, a launch on each stack in turn; returns the number that are
    not equal, or not as predicted."""
    begin, trained, wrong = time.monotonic(), 0, 0
    wanted = {stack: Wanted(path, stack, work) for stack in stacks}

    def found(file: Path, row: Row) -> None:
        nonlocal trained, wrong
        trained += 1
        line = _note(path, wanted[stack], file, row)
        wanted[stack].count(line)
        wrong += line["outcome"] != "equal"

    while trained < count and time.monotonic() - begin < seconds:
        for stack in stacks:
            with tempfile.TemporaryDirectory() as folder:
                files = _files(path, wanted[stack], first, min(LAUNCH, count - trained), Path(folder))
                launch(stack, files, found, seconds - (time.monotonic() - begin), work)
    print(f"{trained} plans {work} in {time.monotonic() - begin:.0f} s, {wrong} of them {WRONG[work]}")
    return wrong


def _files(path: Path, wanted: Wanted, first: int, number: int, folder: Path) -> list[Path]:
    """Files of the next plans that are wanted, from seed `first`, each named by its seed; those that the stack does not
    train are noted."""
    files: list[Path] = []
    for seed in itertools.count(first):
        if seed in wanted.done:
            continue
        wanted.done.add(seed)
        drawn = draw(seed, small=True)
        file = write(drawn, folder / str(seed))
        plan = build_file(file, target=wanted.stack).plan
        if plan is None or not wanted.takes(seed, drawn.text, found := features(plan)):
            continue
        if reasons := refusals(file, wanted.stack):
            line = {"part": wanted.part, "seed": seed, "outcome": "refused"}
            line |= {"codes": reasons, "features": found}
            state.add(path, line)
            wanted.count(line)
        else:
            files.append(file)
        if len(files) >= number:
            break
    return files


def _note(path: Path, wanted: Wanted, file: Path, row: Row) -> Line:
    """The line of a plan that was trained or took its first step, written to the state file."""
    stack, text, seed = wanted.stack, file.read_text(), int(file.parent.name)
    outcome, codes = judged(row, text)
    plan = build_file(file, target=stack).plan
    assert plan is not None, f"{file} was trained"
    line = {"part": wanted.part, "seed": seed, "outcome": outcome, "codes": codes}
    spent = {"ranks": ranks_of(text), "seconds": round(row["seconds"], 1), "cpu_seconds": round(row["cpu_s"], 1)}
    line |= {**spent, "features": features(plan)}
    state.add(path, line)
    if outcome != "equal":
        print(f"{stack} seed {seed}: {outcome} {codes}\n{text}", flush=True)
        print(row.get("failed") or row.get("late") or row, flush=True)
    return line


def trained(drawn: Drawn, stack: Target) -> tuple[str, list[str]]:
    """The outcome of one plan on a stack, for shrinking."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        launch(stack, [write(drawn, Path(folder))], lambda _, row: rows.append(row))
    return judged(rows[0], drawn.text)
