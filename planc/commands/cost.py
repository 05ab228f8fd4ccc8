"""`planc cost FILE`: the report of one plan."""

from __future__ import annotations

import argparse

from planc.commands.check import show
from planc.commands.common import add_set, add_target, print_json
from planc.driver import examine


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE")
    add_target(parser, required=False)
    add_set(parser)


def run(options: argparse.Namespace) -> int:
    checked = examine(options.file, set=dict(options.set), target=options.target)
    if options.format == "json":
        print_json(checked.report.to_json())
    else:
        show(checked)
    return 0 if checked.report.ok else 1
