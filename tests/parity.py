"""`make parity`: train every layout of both stacks beside one undivided process, and write docs/measured/parity.md.

`parity.py FILE` writes the page from the rows that tests kept in FILE, whichever were run; with `--whole` the page
says that they are of one run of all.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "measured" / "parity.md"

HEAD = """# Layouts that train as one process

{how} Each layout below was trained for three steps from the same weights on the same
batches as one undivided process of the same stack: cuda's programs on 4 gloo processes (8 where the mesh says
so), xla's on 8 virtual CPU devices. The figures are the largest differences: of a loss and of the gradient's
norm relative to the process alone, of a gradient relative to its largest element, after the first and the third
step. Each must stay below 1e-5 in fp32. On cuda the collectives of the second step were counted on every rank,
in calls and bytes, and compared with what the plan's rules predict.
"""


WHOLE = "Written by one run of `make parity`."
PARTS = "Put together from several launches of the tests that `make parity` runs whole."


def main(kept: Path, how: str) -> int:
    newest = {}
    for line in kept.read_text().splitlines():
        row = json.loads(line)
        newest[row["stack"], row["name"]] = row
    PAGE.write_text(page(list(newest.values()), how))
    return 0


def page(rows: list[dict[str, Any]], how: str = WHOLE) -> str:
    """The page: a table a stack, in the order of the rows."""
    return HEAD.format(how=how) + "".join(
        _table(stack, [r for r in rows if r["stack"] == stack]) for stack in ("cuda", "xla")
    )


def _table(stack: str, rows: list[dict[str, Any]]) -> str:
    counted = stack == "cuda"
    titles = ["layout", "model", "plan", "loss", "gradient, step 1", "step 3", "norm"] + ["collectives"] * counted
    lines = [titles, ["---"] * 3 + ["--:"] * 4 + ["---"] * counted, *(_cells(row, counted) for row in rows)]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"\n## {stack}: {len(rows)} layouts\n\n{table}\n"


def _cells(row: dict[str, Any], counted: bool) -> list[str]:
    mesh, *sentences = row["plan"]
    shown = [f"{x:.1e}" for x in (row["loss"], *row["gradient"], row["norm"])]
    cells = [row["name"], row["model"], "; ".join(f"`{s}`" for s in (f"mesh {mesh}", *sentences)), *shown]
    if counted:
        plain = "not counted: blocks are compiled" if any(s.startswith("compile blocks") for s in sentences) else ""
        cells.append(plain or ("as predicted" if row["collectives"] == [] else f"{len(row['collectives'])} differ"))
    return cells


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), WHOLE if "--whole" in sys.argv else PARTS))
