"""`planc search FILE`: the best layouts for what a plan leaves free with `?`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from planc.cli.common import add_set, print_diagnostics, print_json
from planc.cli.views.report_text import seconds, strong
from planc.cli.views.table import table
from planc.diag.errors import PlanError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("--top", type=int, default=5, metavar="N", help="how many layouts to return (5)")
    parser.add_argument("--sequences", type=int, metavar="N", help="the largest batch, for `batch ?`")
    parser.add_argument("--memory", type=float, metavar="GIB", help="what a device may hold (the chip's memory)")
    parser.add_argument("-o", dest="folder", metavar="FOLDER", help="write the plans found into a folder")
    add_set(parser)


def run(options: argparse.Namespace) -> int:
    from planc.search import search

    try:
        found = search(
            options.file,
            set=dict(options.set),
            top=max(1, options.top),
            most_sequences=options.sequences,
            memory_gib=options.memory,
        )
    except PlanError as error:
        print_diagnostics(error.diagnostics, {})
        return 1
    if options.folder:
        _write(options.folder, Path(options.file).stem, [c.text for c in found.best])
    if options.format == "json":
        print_json(found.to_json())
        return 0 if found.best else 1
    print(
        f"{strong(options.file)}: {found.decided:,} layouts decided, {found.fully_costed:,} of them costed,"
        f" in {seconds(found.seconds)}"
    )
    if not found.best:
        print("none of them fits the devices' memory", file=sys.stderr)
        return 1
    rows = [
        (str(i), c.label, seconds(c.time_s), f"{c.step.mfu:.1%}", f"{c.memory_gib:.1f}", c.why)
        for i, c in enumerate(found.best, 1)
    ]
    print("\n".join(table(("", "layout", "step", "MFU", "GiB", "than the next"), rows, left=2, left_last=True)))
    print(f"\n{strong('time against memory')}, near the fastest")
    front = [(c.label, seconds(c.time_s), f"{c.memory_gib:.1f}") for c in found.pareto]
    print("\n".join(table(("layout", "step", "GiB"), front, left=1)))
    return 0


def _write(folder: str, stem: str, texts: list[str]) -> None:
    """`STEM_1.plan` is the best."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    for i, text in enumerate(texts, 1):
        (place / f"{stem}_{i}.plan").write_text(text)
