"""Lines `ROW {json}` that launched workers report; rows of parity are kept for docs/measured/parity.md."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

KEPT = "PLANC_PARITY"
"""The variable that names the file which rows of parity are appended to."""


def rows_of(output: str) -> list[dict[str, Any]]:
    """The rows of a worker's output, in their order."""
    return [json.loads(line[4:]) for line in output.splitlines() if line.startswith("ROW ")]


def parity_rows(stack: str, output: str) -> dict[str, dict[str, Any]]:
    """The rows of a parity worker by layout."""
    rows = rows_of(output)
    if KEPT in os.environ:
        with Path(os.environ[KEPT]).open("a") as kept:
            kept.writelines(json.dumps({"stack": stack, **row}) + "\n" for row in rows)
    return {row["name"]: row for row in rows}
