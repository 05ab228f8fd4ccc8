"""`planc sync SERVE`: what moves when a generator receives its trainer's weights, and how long that takes."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from planc.cli.common import add_set, exit_status, print_diagnostics, print_json
from planc.files import first_word


def arguments(parser: argparse.ArgumentParser) -> None:
    help = 'a serve plan, which begins with `serve NAME of "train.plan"`; the training plan may stand before it'
    parser.add_argument("files", nargs="+", metavar="FILE", help=help)
    add_set(parser)


def run(options: argparse.Namespace) -> int:
    from planc.cli.views.serve_text import sync_lines
    from planc.cli.views.table import fitted
    from planc.driver.serving import examine_serve

    *trainers, file = options.files
    if len(trainers) > 1 or first_word(Path(file)) != "serve":
        print("planc sync: takes a serve plan, or a training plan and the serve plan of it", file=sys.stderr)
        return 2
    examined = examine_serve(file, set=dict(options.set))
    serve, report = examined.serve, examined.report
    if (
        trainers
        and serve is not None
        and (Path(file).parent / serve.trainer.file).resolve() != Path(trainers[0]).resolve()
    ):
        print(f"planc sync: {file} serves {serve.trainer.file}, not {trainers[0]}", file=sys.stderr)
        return 2
    if options.format == "json":
        print_json(report.to_json())
        return exit_status(report.diagnostics)
    if report.sync is not None:
        print("\n".join(fitted(list(sync_lines(report.sync)))))
    if report.diagnostics:
        print() if report.sync is not None else None
        print_diagnostics(report.diagnostics, examined.sources)
    return exit_status(report.diagnostics)
