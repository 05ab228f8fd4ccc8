"""`planc sweep FILE --over NAME=N,N,...`: costs one plan at many values of one number."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from planc.cli.common import add_costed_target, add_set, output_path, print_json, refused, width
from planc.diag.errors import PlanError
from planc.files import write_atomically

if TYPE_CHECKING:
    from planc.compare.sweep import Sweep
    from planc.compare.sweep_values import Over

SUFFIXES = (".svg", ".csv", ".json")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE")
    parser.add_argument(
        "--over",
        required=True,
        type=_parse_over,
        metavar="NAME=N,N",
        help="devices, batch, sequence, microbatch, an axis, a name of `let`, or (in percent of what it is) a figure of"
        " the machine such as nvlink4.bandwidth; and its values; N..N doubles",
    )
    parser.add_argument("--axis", default="", metavar="AXIS", help="the axis that takes more devices")
    parser.add_argument("--weak", action="store_true", help="the batch grows with the devices")
    parser.add_argument(
        "-o",
        dest="outputs",
        action="append",
        default=[],
        type=output_path(*SUFFIXES),
        metavar="FILE",
        help="write .svg, .csv or .json",
    )
    add_costed_target(parser)
    add_set(parser)


def _parse_over(text: str) -> Over:
    from planc.compare.sweep_values import parse_over

    try:
        return parse_over(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(options: argparse.Namespace) -> int:
    from planc.cli.progress import Progress
    from planc.compare.plan_edit import NotWrittenError
    from planc.compare.sweep import sweep
    from planc.diag.quoting import printable

    try:
        with Progress("sweep") as progress, progress.during(printable(f"costing {options.file}")):
            found = sweep(
                Path(options.file),
                options.over,
                axis=options.axis,
                weak=options.weak,
                set=dict(options.set),
                target=options.target,
            )
    except PlanError as error:
        return refused(error.diagnostics, options.format)
    except NotWrittenError as error:
        print(f"planc sweep: {options.file}: {error}", file=sys.stderr)
        return 2
    for path in options.outputs:
        _write(found, path)
    if options.format == "json":
        print_json(found.to_json())
    else:
        from planc.cli.views.sweep_text import lines

        print("\n".join(lines(found, width())))
    return 0 if any(row.ok for row in found.rows) else 1


def _write(found: Sweep, path: Path) -> None:
    import json

    from planc.cli.views.sweep_text import csv, picture

    texts = {
        ".svg": lambda: picture(found),
        ".csv": lambda: csv(found),
        ".json": lambda: json.dumps(found.to_json(), indent=2) + "\n",
    }
    write_atomically(path, texts[path.suffix]())
