"""Text of programs that stands in strings only becomes less: functions and holes of the templates of all backends.

`python tests/house/test_templates.py` prints them by file, the lines of `emit/` and `program/` too.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

BACKENDS = Path(__file__).parents[2] / "backends"
MOST_FUNCTIONS, MOST_HOLES = 126, 402
"""As many as there are."""


def templates(path: Path) -> tuple[int, int]:
    """The functions and classes, and the holes (`<name>`), in the strings of a file that are no docstrings."""
    tree = ast.parse(path.read_text())
    documents = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    strings = [
        n.value
        for n in ast.walk(tree)
        if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in documents
    ]
    found = [sum(len(re.findall(what, s)) for s in strings) for what in (r"(?m)^\s*(?:def|class) ", r"<[a-z]\w*>")]
    return found[0], found[1]


def counted() -> dict[Path, tuple[int, int]]:
    return {path: templates(path) for path in sorted(BACKENDS.glob("*/emit/*.py"))}


def test_templates_only_become_less() -> None:
    functions, holes = (sum(counts) for counts in zip(*counted().values(), strict=True))
    assert functions <= MOST_FUNCTIONS and holes <= MOST_HOLES, "a function of a program belongs in `program/`"
    assert (functions, holes) == (MOST_FUNCTIONS, MOST_HOLES), "fewer: lower the numbers"


if __name__ == "__main__":
    for path, (functions, holes) in counted().items():
        print(f"{functions:5d} functions {holes:5d} holes  {path.relative_to(BACKENDS)}")
    print(*(sum(counts) for counts in zip(*counted().values(), strict=True)), "in all")
    for folder in ("emit", "program"):
        print(sum(len(p.read_text().splitlines()) for p in BACKENDS.glob(f"*/{folder}/*.py")), "lines of", folder)
