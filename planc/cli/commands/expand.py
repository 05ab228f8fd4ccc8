"""`planc expand FILE`: the plan in full, without shorthand, `let` or import, and with all defaults and its hardware."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from pathlib import Path

from planc.cli.common import add_costed_target, add_set, exit_status, print_diagnostics, print_json
from planc.driver import examine
from planc.ir.target import NO_TARGET
from planc.language.in_full import DEFAULT, Row, as_text, in_full


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE")
    add_set(parser)
    add_costed_target(parser)


def run(options: argparse.Namespace) -> int:
    found = examine(Path(options.file), set=dict(options.set), target=options.target, targets=())
    built, plan = found.built, found.plan
    assert built is not None
    rows = [*in_full(built, plan)]
    if plan is not None and built.target is None:
        rows.insert(_own(rows), Row(f"target {found.report.target or NO_TARGET}", DEFAULT))
    if options.format == "json":
        sentences = [{"sentence": row.text, "via": row.via or None} for row in rows]
        print_json({"sentences": sentences, "diagnostics": [d.to_json() for d in built.diagnostics]}, "planc.expand/1")
    else:
        print(as_text(plan.name if plan else "", rows), end="")
    if built.diagnostics and options.format != "json":
        with redirect_stdout(sys.stderr):  # standard output is a plan
            print_diagnostics(built.diagnostics)
    return exit_status(built.diagnostics)


def _own(rows: list[Row]) -> int:
    """Return how many of `rows` are sentences of the plan itself: those before the first hardware declaration."""
    return next((i for i, row in enumerate(rows) if row.declares), len(rows))
