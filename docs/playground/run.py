"""Commands of planc on the plans of the playground's page, in Pyodide's Python. Nothing here asks the network."""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
from pathlib import Path

from planc.cli import main

FOLDER = Path("/tmp/playground")
PLAN, OTHER, PAGE = FOLDER / "plan.plan", FOLDER / "other.plan", FOLDER / "page.html"
COMMANDS = {
    "check": ["check", PLAN.name],
    "cost": ["cost", PLAN.name, "--explain"],
    "fmt": ["fmt", PLAN.name],
    "diff": ["diff", PLAN.name, OTHER.name],
    "search": ["search", PLAN.name, "--seconds", "20"],
    "report": ["report", PLAN.name, "-o", PAGE.name],
}


WIDE = 100
"""Columns from which an answer is as in a pipe; below it fits the page as a terminal's does."""


class Output(io.StringIO):
    """Text that the page shows."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self._columns = columns

    def isatty(self) -> bool:
        return self._columns < WIDE


def run(command: str, plan: str, other: str, columns: int = WIDE) -> str:
    """Answer of a `command` to the texts of one or two plans, as JSON: status, text, seconds, and a page or a plan.

    `columns` is how many characters the page has room for.
    """
    os.environ |= {"NO_COLOR": "1", "COLUMNS": str(max(40, columns))}
    FOLDER.mkdir(exist_ok=True)
    PLAN.write_text(plan)
    OTHER.write_text(other)
    PAGE.unlink(missing_ok=True)
    said, errors, started = Output(columns), io.StringIO(), time.perf_counter()
    with contextlib.chdir(FOLDER), contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors):
        try:
            status = main(COMMANDS[command])
        except SystemExit as left:
            status = left.code if isinstance(left.code, int) else 2
    answer = {"status": status, "text": said.getvalue() + errors.getvalue(), "seconds": time.perf_counter() - started}
    if PAGE.exists():
        answer["page"] = PAGE.read_text()
    if command == "fmt":
        answer["plan"] = PLAN.read_text()
    return json.dumps(answer)
