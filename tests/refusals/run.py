"""`make refusals`: check and lower every plan of table.toml for both targets, and write docs/measured/refusals.md.

`before.json` has the answers at the commit that it names; `run.py --before COMMIT` writes it, in that commit's tree.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import tomllib
from collections import Counter
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from planc.diag.errors import PlanError  # noqa: E402
from planc.driver import lower  # noqa: E402
from planc.ir.target import TARGETS, Target  # noqa: E402

TABLE, BEFORE = Path(__file__).with_name("table.toml"), Path(__file__).with_name("before.json")
PAGE = ROOT / "docs" / "measured" / "refusals.md"
BATCH = "64 x 4096 tokens microbatch 1"
PLAN = """plan {name}
model     {model}
batch     {batch}
cluster   {cluster}
mesh      {mesh}
{sentences}
compute   bf16 reduce fp32
"""
LOWERED = "lowered"

Answers = dict[str, dict[str, str]]
"""By row and target: `lowered`, or the code and the message of the first refusal."""


@dataclass(frozen=True)
class Row:
    """A combination: its plan, and why torch itself cannot do it, if that is so."""

    name: str
    group: int
    model: str
    mesh: str
    plan: tuple[str, ...]
    batch: str = BATCH
    cluster: str = ""
    torch: str = ""
    source: str = ""

    @property
    def text(self) -> str:
        """The plan's text."""
        devices = prod(int(axis.split()[1]) for axis in self.mesh.split(">"))
        cluster = self.cluster or f"{devices // 8} x h100_node"
        return PLAN.format(
            name=self.name,
            model=self.model,
            batch=self.batch,
            cluster=cluster,
            mesh=self.mesh,
            sentences="\n".join(self.plan),
        )


def read() -> tuple[dict[int, str], list[Row]]:
    """The groups by number, and the rows."""
    table = tomllib.loads(TABLE.read_text())
    rows = [Row(**{**row, "plan": tuple(row["plan"])}) for row in table["row"]]
    return {int(number): title for number, title in table["groups"].items()}, rows


def answer(row: Row, target: Target, folder: Path) -> str:
    """Answer of a target to a row: `lowered`, or the first error as `CODE: message`."""
    path = folder / f"{row.name}.plan"
    path.write_text(row.text)
    try:
        assert lower(path, target).text
    except PlanError as error:
        first = next(d for d in error.diagnostics if d.severity == "error")
        return f"{first.code}: {first.message}"
    return LOWERED


def answers(rows: list[Row]) -> Answers:
    """Answers of each target to each row."""
    with tempfile.TemporaryDirectory() as folder:
        return {row.name: {target: answer(row, target, Path(folder)) for target in TARGETS} for row in rows}


def page(now: Answers) -> str:
    """The page: the counts, then a table a group."""
    groups, rows = read()
    kept = json.loads(BEFORE.read_text())
    before: Answers = kept["answers"]
    text = HEAD.format(
        rows=len(rows), groups=len(groups), commit=kept["commit"], counts=_counts(rows, before, now, kept["commit"])
    )
    for number, title in groups.items():
        mine = [row for row in rows if row.group == number]
        text += f"\n## {number}. {title}\n\n{_table(mine, before, now)}"
    return text


HEAD = """# Combinations that each target lowers

{rows} combinations that a user would write, in {groups} groups, each with the answer of `planc lower` at {commit}, when
the table was written, and today. Written by `make refusals` from the plans in
[tests/refusals/table.toml](../../tests/refusals/table.toml); a test of the quick tier compares what this page says.
Left out of a row: `batch 64 x 4096 tokens microbatch 1`, nodes of eight H100s, `compute bf16 reduce fp32`.

{counts}
"""


def _counts(rows: list[Row], before: Answers, now: Answers, commit: str) -> str:
    lines = [f"| target | lowered at {commit} | lowered now |", "|---|--:|--:|"]
    for target in TARGETS:
        counts = [Counter(found[row.name][target] == LOWERED for row in rows)[True] for found in (before, now)]
        lines.append(f"| {target} | " + " | ".join(f"{n} of {len(rows)} ({n / len(rows):.0%})" for n in counts) + " |")
    return "\n".join(lines)


def _table(rows: list[Row], before: Answers, now: Answers) -> str:
    lines = ["| combination | plan | cuda before | cuda now | xla before | xla now |", "|---|---|---|---|---|---|"]
    for row in rows:
        plan = "; ".join(f"`{s}`" for s in (f"model {row.model}", f"mesh {row.mesh}", *row.plan))
        cells = [f"{_short(found[row.name][t])}" for t in TARGETS for found in (before, now)]
        lines.append(f"| {row.name} | {plan} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n" + "".join(_reasons(row, now[row.name]) for row in rows) + "\n"


def _short(found: str) -> str:
    return found.partition(":")[0]


def _reasons(row: Row, now: dict[str, str]) -> str:
    """Reasons for refusing a row today, by target; torch's own with its source."""
    refused = {t: found.partition(": ")[2] for t, found in now.items() if found != LOWERED}
    reasons = [f"- {row.name}, {target}: {message}" for target, message in refused.items()]
    if row.torch and "cuda" in refused:
        reasons[0] += f".\n  In torch: {row.torch}\n  ([source]({row.source}))"
    return "".join(f"\n{reason}" for reason in reasons)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", metavar="COMMIT", help="write before.json as of this commit, instead of the page")
    arguments = parser.parse_args()
    found = answers(read()[1])
    if arguments.before:
        kept: dict[str, Any] = {"commit": arguments.before, "answers": found}
        BEFORE.write_text(json.dumps(kept, indent=1) + "\n")
    else:
        PAGE.write_text(page(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
