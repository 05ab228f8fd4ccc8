"""`planc place FILE`: finds the fastest order of the mesh axes on the plan's machine; `-o` writes rank files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from planc.cli.common import add_costed_target, add_set, print_json, refused
from planc.cli.with_changes import add_with
from planc.files import write_atomically
from planc.ir.target import named

if TYPE_CHECKING:
    from planc.compare.placement import RankPlacement, Reach
    from planc.driver import Examined
    from planc.ir.mesh import Mesh

KINDS = ("torchrun", "slurm", "jax")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE")
    about = "write the device of each rank, with which the plan's program runs as it is in the best order"
    parser.add_argument("-o", "--output", metavar="FILE", help=about)
    about = "who reads that file: a device mesh for torchrun or jax, Slurm's distribution (xla: jax; else torchrun)"
    parser.add_argument("--launch", choices=KINDS, help=about)
    about = "write the best order into the plan's mesh sentence; its program and launch files have it from then on"
    parser.add_argument("--fix", action="store_true", help=about)
    add_costed_target(parser)
    add_set(parser)
    add_with(parser)


def run(options: argparse.Namespace) -> int:
    from planc.compare.placement import place
    from planc.compare.rank_files import rank_file
    from planc.diag.errors import PlanError
    from planc.driver import examine

    if options.launch and not options.output:
        print("planc place: --launch says what -o writes", file=sys.stderr)
        return 2
    if options.fix and (options.changes or options.output):
        print(
            "planc place: --fix writes the order of this machine into the plan: leave --with and -o out",
            file=sys.stderr,
        )
        return 2
    examined = examine(options.file, set=dict(options.set), target=options.target, targets=())
    if examined.costed is None:
        return refused(examined.report.diagnostics, options.format, examined.sources)
    if options.changes:
        from planc.compare.what_if import sources_of, what_if

        try:
            _, examined = what_if(examined, options.changes, options.target)
        except PlanError as error:
            return refused(error.diagnostics, options.format, sources_of(examined, options.changes))
    assert examined.costed is not None
    plan = examined.costed.sharded.plan
    try:
        found, best = place(examined.costed)
        if options.output:
            order = found.device_order or range(plan.mesh.devices)
            kind = options.launch or ("jax" if found.target == "xla" else "torchrun")
            write_atomically(Path(options.output), rank_file(plan, best, order, kind))
        if options.fix and found.today != found.best:
            _write_order(options.file, examined, best)
    except ValueError as error:
        print(f"planc place: {options.file}: {error}", file=sys.stderr)
        return 2
    if options.format == "json":
        print_json(found.to_json())
    else:
        print("\n".join(_lines(found, written=options.file if options.fix else "")))
    return 0


def _write_order(file: str, examined: Examined, best: Mesh) -> None:
    """Rewrite the `mesh` sentence of the plan in `file` with the axes in the order of `best`."""
    from planc.cli.apply_fixes import apply_fix, text_of
    from planc.compare.placement import reordered
    from planc.diag.diagnostic import Edit, Fix

    assert examined.costed is not None
    span = examined.costed.sharded.plan.mesh.cause.span
    assert span.file == Path(file).name and span.line == span.end_line, "a plan has a mesh of its own, on one line"
    line = text_of(examined, Path(file)).split("\n")[span.line - 1]
    written = line[span.column - 1 : span.end_column - 1].split(None, 1)[1]
    axes = replace(span, column=span.end_column - len(written))
    apply_fix(examined, file, Fix("the best order", (Edit(axes, reordered(written, best.sizes)),)))


def _lines(found: RankPlacement, written: str = "") -> Iterator[str]:
    """Yield the current and the best order of the axes, with the network tiers that transfers use. `written` is the
    rewritten file ("": none)."""
    from planc.cli.views.table import table

    same = found.today == found.best
    rows = [(found.today.mesh, "today, the best" if same else "today", found.today)]
    rows += [] if same else [(found.best.mesh, "best", found.best)]
    yield f"{found.plan}: {found.devices:,} devices, {named(found.target)}"
    seconds = [(mesh, said, f"{o.step_s:.4g}", f"{o.collectives_s:.4g}") for mesh, said, o in rows]
    yield from table(("mesh", "", "step s", "collectives s"), seconds, left=2)
    rest = found.orders - found.timed - found.refused
    said = f"; {found.refused:,} faster ones are refused" if found.refused else ""
    said += f"; none of the other {rest:,} can be faster" if rest else ""
    yield f"{found.orders:,} orders; {found.timed:,} timed{said}."
    yield ""
    names = ("axes", "ranks", "GiB sent", "today: on", "nodes", "s")
    yield from table(
        names if same else (*names, "best: on", "nodes", "s"),
        [
            (t.axes, str(t.members), f"{t.sent_bytes / 2**30:.4g}", *_reach(t.today), *(() if same else _reach(t.best)))
            for t in found.traffic
        ],
    )
    yield ""
    levels = [(v.level, f"{v.today_bytes / 2**30:.4g}", f"{v.best_bytes / 2**30:.4g}") for v in found.levels]
    heads = ("collectives that reach", "GiB sent today", "in the best order")
    yield from table(heads[:2] if same else heads, [row[:2] if same else row for row in levels])
    if not same:
        saved_s = found.today.step_s - found.best.step_s
        said = f"the step takes {saved_s:.3g} s less ({saved_s / found.today.step_s:.2g} of it)"
        now = f"`mesh {found.best.mesh}`"
        yield (
            f"\n{written} has {now} now: {said}."
            if written
            else (f"\nWrite {now} (--fix does): {said}. Or keep the mesh and move its ranks: -o FILE.")
        )


def _reach(reach: Reach) -> tuple[str, str, str]:
    return reach.level, f"{reach.nodes:g}", f"{reach.seconds:.4g}"
