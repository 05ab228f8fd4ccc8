"""`planc place FILE`: the order of the mesh axes that is fastest on the plan's machine; `-o` writes rank files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from planc.cli.common import add_costed_target, add_set, print_json, refused
from planc.files import write_atomically

if TYPE_CHECKING:
    from planc.compare.placement import Placement, Reach

KINDS = ("torchrun", "slurm", "jax")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE")
    about = "write the device of each rank, with which the plan's program runs as it is in the best order"
    parser.add_argument("-o", "--output", metavar="FILE", help=about)
    about = "who reads that file: a device mesh for torchrun or jax, Slurm's distribution (xla: jax; else torchrun)"
    parser.add_argument("--launch", choices=KINDS, help=about)
    add_costed_target(parser)
    add_set(parser)


def run(options: argparse.Namespace) -> int:
    from planc.compare.placement import place
    from planc.compare.rank_files import rank_file
    from planc.driver import examine

    if options.launch and not options.output:
        print("planc place: --launch says what -o writes", file=sys.stderr)
        return 2
    examined = examine(options.file, set=dict(options.set), target=options.target, targets=())
    if examined.costed is None:
        return refused(examined.report.diagnostics, options.format, examined.sources)
    plan = examined.costed.sharded.plan
    try:
        found, best = place(examined.costed)
        if options.output:
            order = found.device_order or range(plan.mesh.devices)
            kind = options.launch or ("jax" if found.target == "xla" else "torchrun")
            write_atomically(Path(options.output), rank_file(plan, best, order, kind))
    except ValueError as error:
        print(f"planc place: {options.file}: {error}", file=sys.stderr)
        return 2
    if options.format == "json":
        print_json(found.to_json())
    else:
        print("\n".join(_lines(found)))
    return 0


def _lines(found: Placement) -> Iterator[str]:
    """Today's order and the best one, and what moves where in each."""
    from planc.cli.views.table import table

    same = found.today == found.best
    rows = [(found.today.mesh, "today, the best" if same else "today", found.today)]
    rows += [] if same else [(found.best.mesh, "best", found.best)]
    yield f"{found.plan}: {found.devices:,} devices"
    seconds = [(mesh, said, f"{o.step_s:.4g}", f"{o.collectives_s:.4g}") for mesh, said, o in rows]
    yield from table(("mesh", "", "step s", "collectives s"), seconds, left=2)
    rest = found.orders - found.timed - found.refused
    said = f"; {found.refused:,} faster ones are refused" if found.refused else ""
    said += f"; in {rest:,} no collective is faster than in these" if rest else ""
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
        yield f"\nWrite `mesh {found.best.mesh}`: {said}. Or keep the mesh and move its ranks: -o FILE."


def _reach(reach: Reach) -> tuple[str, str, str]:
    return reach.level, f"{reach.nodes:g}", f"{reach.seconds:.4g}"
