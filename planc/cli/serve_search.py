"""`planc search SERVE`: the layouts of a generator, for the sizes and orders of axes that a serve plan leaves open."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from planc.cli.common import print_json, refused
from planc.cli.pages import is_page
from planc.cli.progress import Progress
from planc.cli.views.report_text import strong
from planc.cli.views.table import table
from planc.diag.errors import PlanError
from planc.driver.serve_search import ServeFound, search_serve
from planc.picture.units import count, gib, seconds

GIB = 2.0**30
CUT_SHORT = {
    "time": "cut short after the seconds that were given",
    "interrupt": "interrupted",
    "layouts": "cut short: more layouts than are examined; fix some sizes",
}


def run(options: argparse.Namespace, interrupted: Callable[[], bool]) -> int:
    """Search the serve plan that `options` name, and print the layouts or write their plans. Return the exit status."""
    for name in ("sequences", "memory", "cluster", "free", "view"):
        if getattr(options, name):
            print(f"planc search: --{name} is for training plans", file=sys.stderr)
            return 2
    if options.folder and is_page(options.folder):
        print("planc search: a generator's layouts are no page; -o names a folder", file=sys.stderr)
        return 2
    file = Path(options.file)
    try:
        with Progress("search") as progress:
            found = search_serve(
                file,
                set=dict(options.set),
                top=max(1, options.top),
                target=options.target,
                seconds=options.seconds,
                interrupted=interrupted,
                on_progress=lambda done: progress.show(f"{done:,} layouts examined"),
            )
    except PlanError as error:
        return refused(error.diagnostics, options.format, {})
    if options.folder:
        from planc.cli.found_plans import write_plans

        try:
            write_plans(Path(options.folder), file, [c.text for c in found.best])
        except FileExistsError as error:
            print(f"planc search: {error}", file=sys.stderr)
            return 2
    if options.format == "json":
        print_json(found.to_json())
    else:
        print("\n".join(_lines(found, options.file)))
    if found.cut_short and found.cut_short != "layouts":
        return 130 if found.cut_short == "interrupt" else 3
    return 0 if found.best else 1


def _lines(found: ServeFound, shown: str) -> Iterator[str]:
    yield f"{strong(shown)}: {found.decided:,} layouts, {found.fitting:,} fit, in {seconds(found.seconds)}"
    if found.cut_short:
        yield CUT_SHORT[found.cut_short]
    if found.best:
        rows = [
            (
                f"{i}{' *' if c.on_front else ''}",
                ", ".join(c.values),
                f"{c.memory.replicas:,}",
                "-" if c.tokens_per_s is None else count(c.tokens_per_s),
                seconds(c.sync.seconds),
                f"{c.memory.tokens:,}",
                "-" if c.memory.requests is None else f"{c.memory.requests:,}",
                gib(c.memory.weights.total / GIB),
            )
            for i, c in enumerate(found.best, 1)
        ]
        heads = ("", "layout", "replicas", "tokens/s", "sync", "cache tokens", "requests fit", "weights GiB")
        yield from table(heads, rows, left=2)
        yield "* no other has as many tokens/s and as short a sync; cache and requests are of a replica"
        yield "tokens/s of all replicas, at best: a roofline of decoding without scheduler, launches or collectives"
    if found.refusals:
        reasons = [(r.code, f"{r.layouts:,}", r.message) for r in found.refusals]
        yield from table(("refused", "layouts", "the first of them"), reasons, left=1, left_last=True)
