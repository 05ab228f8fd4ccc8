"""`planc report FILE --trace`: the simulated step as a trace, for Perfetto and other viewers; `planc report
--accuracy RECEIPT...`: predicted beside measured."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from planc.cli.common import add_costed_target, add_set, print_json, refused
from planc.driver import examine
from planc.files import write_atomically


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", help="a plan; with --accuracy, receipts")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--trace", action="store_true", help="the step in the Trace Event format")
    what.add_argument("--accuracy", action="store_true", help="predicted beside measured, of receipts")
    parser.add_argument("-o", "--output", metavar="PATH", help="write here instead of standard output")
    add_costed_target(parser)
    add_set(parser)


def run(options: argparse.Namespace) -> int:
    if options.accuracy:
        from planc.cli.views import accuracy_of_receipts

        return accuracy_of_receipts.run(options.files, as_json=options.format == "json")
    if len(options.files) > 1:
        print("planc report: --trace takes one plan", file=sys.stderr)
        return 2
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
