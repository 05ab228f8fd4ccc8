"""`planc cost FILE`: the report of one plan; with `--explain`, a breakdown of every second of a step."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from planc.cli.commands.check import show
from planc.cli.common import add_costed_target, add_set, exit_status, print_diagnostics, print_json
from planc.cli.with_changes import add_with, show_what_if
from planc.driver import Examined, examine
from planc.ir.target import named

if TYPE_CHECKING:
    from planc.costing.bounds import Bound
    from planc.costing.step.critical_path import CriticalPart


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("--explain", action="store_true", help="name every second, its reason and its sentence")
    add_costed_target(parser)
    add_set(parser)
    add_with(parser)


def run(options: argparse.Namespace) -> int:
    checked = examine(options.file, set=dict(options.set), target=options.target)
    if options.changes:
        return show_what_if(checked, options)
    if options.explain and checked.costed is not None:
        _explain(checked, options.format)
    elif options.format == "json":
        print_json(checked.report.to_json())
    else:
        show(checked)
    return exit_status(checked.report.diagnostics)


def _explain(checked: Examined, format: str) -> None:
    from planc.cli.views.report_text import parts_of, strong
    from planc.cli.views.table import fitted, table
    from planc.costing.bounds import bounds
    from planc.costing.elasticity import elasticities
    from planc.costing.explain import explain
    from planc.costing.step.critical_path import critical_path
    from planc.picture.units import seconds

    assert checked.costed is not None
    step, found = checked.costed.step, explain(checked.costed)
    rooflines = bounds(checked.costed.sharded.plan)
    path, upgrades = critical_path(checked.costed), elasticities(checked.costed)
    if format == "json":
        facts = {"seconds": [s.to_json() for s in found], "rooflines": [b.to_json() for b in rooflines]}
        waits = {"critical_path": [p.to_json() for p in path], "elasticities": [e.to_json() for e in upgrades]}
        print_json({"time_s": step.time_s, "target": checked.costed.target, **facts, **waits}, "planc.explain/1")
        return
    of = named(checked.costed.target)
    head = f"{strong(checked.report.plan or '')}: step {seconds(step.time_s)}, on the slowest rank class, {of}"
    print("\n".join(fitted([head])))
    for part, total in parts_of(step):
        rows = [
            (s.name, seconds(s.seconds), f"{s.seconds / step.time_s:.1%}", s.why, s.cause.comment() if s.cause else "")
            for s in found
            if s.part == part
        ]
        if rows:
            print(f"\n{strong(part)} {seconds(total)}")
            print("\n".join(table(("", "time", "share", "why", "from"), _aligned(rows), left=1, left_last=True)))
        formulas = [f"{s.name}: {seconds(s.seconds)} = {s.formula}" for s in found if s.part == part and s.formula]
        print("\n".join(fitted(["", *formulas] if formulas else [])), end="\n" if formulas else "")
    print("\n".join(fitted(["", f"{strong('critical path')}: what the step waits for, by kind, rank and stage"])))
    columns = ("", "rank", "stage", "count", "time", "share")
    print("\n".join(table(columns, [(*row, f"{s / step.time_s:.1%}") for row, s in _path_rows(path)], left=1)))
    head = f"{strong('upgrades')}: the step with one figure of the machine better, the most first"
    print("\n".join(fitted(["", head])))
    shares = [
        (e.figure, f"{e.elasticity:.3f} %", seconds(e.twice_s), f"{e.twice_s / step.time_s:.1%}") for e in upgrades
    ]
    print("\n".join(table(("figure", "a percent better", "twice as good", "share"), shares, left=1)))
    print("\n".join(fitted(["", f"{strong('rooflines')} of one layer, in closed form"])))
    heads = ("over", "the plan has", "bound by compute", "so it is bound by", "what")
    print("\n".join(table(heads, [_roofline(b) for b in rooflines], left=1, left_last=True)))
    if checked.report.diagnostics:
        print()
        print_diagnostics(checked.report.diagnostics, checked.sources)


def _path_rows(path: Sequence[CriticalPart]) -> list[tuple[tuple[str, ...], float]]:
    """Return table rows and seconds of the longest parts of the critical path, summed by kind, rank and stage."""
    from planc.picture.units import seconds

    sums: dict[tuple[str, int, int], tuple[int, float]] = {}
    for part in path:
        key = part.what, part.rank, part.stage
        count, before_s = sums.get(key, (0, 0.0))
        sums[key] = count + part.count, before_s + part.seconds
    longest = sorted(sums.items(), key=lambda found: -found[1][1])[:LONGEST]
    return [
        ((what, str(rank), str(stage) if stage >= 0 else "", str(count), seconds(s)), s)
        for (what, rank, stage), (count, s) in longest
    ]


LONGEST = 12
"""Number of parts of the critical path that are shown."""


def _roofline(bound: Bound) -> tuple[str, ...]:
    side = "from" if bound.side == "least" else "up to"
    by = "compute" if bound.by_compute else "communication" if bound.axis else "memory"
    return (bound.axis or "one chip", f"{bound.has:,.0f}", f"{side} {bound.limit:,.0f}", by, bound.what)


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    width = max(len(row[3]) for row in rows)
    return [(*row[:3], row[3].ljust(width), row[4]) for row in rows]
