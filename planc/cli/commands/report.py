"""`planc report PLAN -o PAGE`: a plan as one page, as pictures or as data; `--trace`: the simulated step for Perfetto
and other viewers; `--accuracy RECEIPT...`: predicted beside measured."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from planc.cli.common import add_costed_target, add_set, exit_status, print_diagnostics, print_json, refused
from planc.driver import Examined, examine
from planc.files import write_atomically

if TYPE_CHECKING:
    from planc.report.plan_page import PlanPage


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", help="a plan; with --accuracy, receipts")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--trace", action="store_true", help="the step in the Trace Event format")
    what.add_argument("--accuracy", action="store_true", help="predicted beside measured, of receipts")
    what.add_argument("--view", metavar="NAME", default="", help="one view of the page: memory, timeline, ...")
    parser.add_argument(
        "-o", "--output", metavar="PATH", help="the page: its ending, html, svg or json, picks the form; the trace"
    )
    add_costed_target(parser)
    add_set(parser)


def run(options: argparse.Namespace) -> int:
    if options.accuracy:
        from planc.cli.views import accuracy_of_receipts

        return accuracy_of_receipts.run(options.files, as_json=options.format == "json")
    if len(options.files) > 1:
        print(f"planc report: {'--trace' if options.trace else 'a page'} takes one plan", file=sys.stderr)
        return 2
    if options.trace:
        return _trace(options)
    if not options.output and options.format != "json":
        print("planc report: one of -o PAGE, --trace, --accuracy is needed", file=sys.stderr)
        return 2
    return _page(options)


def _page(options: argparse.Namespace) -> int:
    """Write the page, or print it as JSON. A plan with errors has a page of them."""
    from planc.cli.pages import ending, known_view, write_page
    from planc.report.render import PLAN_VIEWS

    wrong = known_view(options.view, PLAN_VIEWS) or (options.output and ending(options.output)[1])
    if wrong:
        print(f"planc report: {wrong}", file=sys.stderr)
        return 2
    checked = examine(options.files[0], set=dict(options.set), target=options.target)
    status = exit_status(checked.report.diagnostics)
    if status == 2:
        return refused(checked.report.diagnostics, options.format, checked.sources)
    page = _made(checked, options)
    if not options.output:
        write_page(page, PLAN_VIEWS, options.view, None)
        return status
    written = write_page(page, PLAN_VIEWS, options.view, Path(options.output))
    if written is None:
        print(f"planc report: {options.view or 'this plan'} has no picture: write html or json", file=sys.stderr)
        return 2
    if options.format == "json":
        print_json({"page": options.output, "bytes": written, "headline": page.verdict.headline}, "planc.page_file/1")
        return status
    if checked.report.diagnostics:
        print_diagnostics(checked.report.diagnostics, checked.sources)
    print(f"{options.output}: {page.verdict.sentence} {written / 1e3:,.0f} kB")
    return status


def _made(checked: Examined, options: argparse.Namespace) -> PlanPage:
    from planc.report.plan_page import plan_page

    words = ["planc", "report", options.files[0], "-o", options.output or "report.html"]
    words += [w for name, value in options.set for w in ("--set", f"{name}={value}")]
    words += ["--target", options.target] if options.target else []
    words += ["--view", options.view] if options.view else []
    return plan_page(checked, shlex.join(words))


def _trace(options: argparse.Namespace) -> int:
    checked = examine(options.files[0], set=dict(options.set), target=options.target)
    if checked.costed is None:
        return refused(checked.report.diagnostics, options.format, checked.sources)
    from planc.cost.step.trace import MOST_ACTIONS, actions, trace

    if (count := actions(checked.costed)) > MOST_ACTIONS:
        plan = checked.costed.sharded.plan
        why = f"{len(plan.stages)} stages x {plan.microbatches} microbatches"
        print(f"planc report: {why} make {count:,} actions; a trace holds {MOST_ACTIONS:,}", file=sys.stderr)
        return 2
    made = trace(checked.costed)
    if not options.output:
        print(json.dumps(made))
        return 0
    path = Path(options.output)
    write_atomically(path, json.dumps(made))
    facts = {"trace": str(path), "events": len(made["traceEvents"]), "step_s": checked.costed.step.time_s}
    if options.format == "json":
        print_json(facts, "planc.trace/1")
    else:
        print(f"{path}: {facts['events']:,} events of a step of {checked.costed.step.time_s:.4g} s")
    return 0
