"""`planc check --fix`: apply the edits of the findings, one finding at a time, until none is left."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from planc.diag.diagnostic import Fix
from planc.diag.edits import apply_edits
from planc.driver import examine
from planc.ir.program import Target

MOST = 50


def fix_file(file: str, given: dict[str, int], target: Target | None) -> list[Fix]:
    """Mend a file in place; returns what was applied.

    Edits to other files are left alone, and so are those of notes: advice is not a mistake.
    """
    applied: list[Fix] = []
    for _ in range(MOST):
        report = examine(file, set=given, target=target).report
        wrong = [d for d in report.diagnostics if d.severity != "note"]
        fix = next((d.fix for d in wrong if _usable(d.fix, file, applied)), None)
        if fix is None:
            break
        _write(Path(file), apply_edits(Path(file).read_text(), fix.edits))
        applied.append(fix)
    return applied


def _usable(fix: Fix | None, file: str, applied: list[Fix]) -> bool:
    return fix is not None and fix not in applied and all(e.span.file == file for e in fix.edits)


def _write(path: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".planc-")
    with os.fdopen(handle, "w") as out:
        out.write(text)
    os.replace(temporary, path)
