"""`planc report PLAN -o PAGE`: a plan or a training run as a page, pictures or data; `--trace`: the simulated step for
Perfetto and other viewers; `--memory-snapshot`: its memory for torch's memory viewer; `--accuracy RECEIPT...`:
predicted against measured figures."""

from __future__ import annotations

import argparse
import gc
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from planc.cli.common import add_costed_target, add_set, exit_status, print_diagnostics, print_json, refused
from planc.diag.quoting import printable
from planc.driver import examine
from planc.files import first_word, write_atomically
from planc.ir.target import named

if TYPE_CHECKING:
    from planc.costing import CostedPlan


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="a plan, or a training run's folder; with --accuracy, receipts"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--trace", action="store_true", help="the step in the Trace Event format")
    what.add_argument("--memory-snapshot", action="store_true", help="memory over the step, for torch's memory viewer")
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
        print(f"planc report: {_flag(options)} takes one plan", file=sys.stderr)
        return 2
    if options.trace or options.memory_snapshot:
        if first_word(Path(options.files[0])) == "serve":
            print(f"planc report: a serve plan has no step, so no {_flag(options)}", file=sys.stderr)
            return 2
        return _trace(options)
    if not options.output and options.format != "json":
        print("planc report: one of -o PAGE, --trace, --accuracy is needed", file=sys.stderr)
        return 2
    if is_run(options.files[0]):
        return _run(options)
    if first_word(Path(options.files[0])) == "serve":
        return _serve(options)
    return _page(options)


def is_run(path: str) -> bool:
    """True if `path` is the folder or the metrics file of a training run, and not a plan."""
    return path.endswith(".jsonl") or Path(path).is_dir()


def _run(options: argparse.Namespace) -> int:
    """Write the page of a training run. Return the exit status."""
    from planc.cli.pages import page_command, save_page, wrong_page
    from planc.cli.progress import Progress
    from planc.report.run_page import RunError, run_page

    if wrong := wrong_page(options, "run"):
        print(f"planc report: {wrong}", file=sys.stderr)
        return 2
    try:
        with Progress("report") as progress, progress.during(name := printable(f"reading {options.files[0]}")) as say:
            page = run_page(Path(options.files[0]), page_command(options), lambda read: say(f"{name}: {read:.0%}"))
    except RunError as error:
        print(f"planc report: {printable(str(error))}", file=sys.stderr)
        return 2
    return save_page(page, options, 0)


def _serve(options: argparse.Namespace) -> int:
    """Write the page of a serve plan. Return the exit status."""
    from planc.cli.pages import page_command, save_page, wrong_page
    from planc.driver.serving import examine_serve
    from planc.report.serve_page import serve_page

    if wrong := wrong_page(options, "serve"):
        print(f"planc report: {wrong}", file=sys.stderr)
        return 2
    examined = examine_serve(options.files[0], set=dict(options.set), target=options.target)
    diagnostics = examined.report.diagnostics
    if examined.sides is None or examined.report.sync is None:
        return refused(diagnostics, options.format, examined.sources)
    if options.output and options.format == "text" and diagnostics:
        print_diagnostics(diagnostics, examined.sources)
    return save_page(serve_page(examined, page_command(options)), options, exit_status(diagnostics))


def _flag(options: argparse.Namespace) -> str:
    return "--trace" if options.trace else "--memory-snapshot" if options.memory_snapshot else "a page"


def _page(options: argparse.Namespace) -> int:
    from planc.cli.pages import page_command, save_page, wrong_page

    if wrong := wrong_page(options):
        print(f"planc report: {wrong}", file=sys.stderr)
        return 2
    checked = examine(options.files[0], set=dict(options.set), target=options.target)
    status = exit_status(checked.report.diagnostics)
    if status == 2:
        return refused(checked.report.diagnostics, options.format, checked.sources)
    if options.output and options.format == "text" and checked.report.diagnostics:
        print_diagnostics(checked.report.diagnostics, checked.sources)
    from planc.cli.progress import Progress
    from planc.report.plan_page import plan_page

    enabled = gc.isenabled()
    gc.disable()  # many small values and no cycles
    try:
        with Progress("report") as progress, progress.during(printable(f"drawing {options.files[0]}")):
            page = plan_page(checked, page_command(options))
        return save_page(page, options, status)
    finally:
        if enabled:
            gc.enable()


def _trace(options: argparse.Namespace) -> int:
    checked = examine(options.files[0], set=dict(options.set), target=options.target)
    if checked.costed is None:
        return refused(checked.report.diagnostics, options.format, checked.sources)
    from planc.costing.step.trace import MOST_ACTIONS, actions, trace

    if (count := actions(checked.costed)) > MOST_ACTIONS:
        plan = checked.costed.sharded.plan
        why = f"{len(plan.stages)} stages x {plan.microbatches} microbatches"
        print(f"planc report: {why} make {count:,} actions; a trace holds {MOST_ACTIONS:,}", file=sys.stderr)
        return 2
    if options.memory_snapshot:
        return _snapshot(options, checked.costed)
    made = trace(checked.costed)
    if not options.output:
        print(json.dumps(made))
        return 0
    path = Path(options.output)
    write_atomically(path, json.dumps(made))
    step_s, target = checked.costed.step.time_s, checked.costed.target
    facts = {"trace": str(path), "events": len(made["traceEvents"]), "step_s": step_s, "target": target}
    if options.format == "json":
        print_json(facts, "planc.trace/1")
    else:
        print(f"{path}: {facts['events']:,} events of a step of {step_s:.4g} s, {named(target)}")
    return 0


def _snapshot(options: argparse.Namespace, costed: CostedPlan) -> int:
    """Write the predicted snapshot for torch's memory viewer. It is binary, so an output file is required."""
    from planc.costing.step.memory_snapshot import memory_snapshot, pickled
    from planc.picture.units import gib

    if not options.output:
        print("planc report: --memory-snapshot needs -o FILE", file=sys.stderr)
        return 2
    path, made = Path(options.output), memory_snapshot(costed)
    write_atomically(path, pickled(made))
    events = sum(map(len, made["device_traces"]))
    most = costed.memory.per_device_gib.total - costed.memory.per_device_gib.reserve
    facts = {"snapshot": str(path), "devices": len(made["device_traces"]), "events": events, "fullest_gib": most}
    facts["target"] = costed.target
    if options.format == "json":
        print_json(facts, "planc.snapshot/1")
    else:
        told = f"{events:,} events, {gib(most)} GiB at the fullest, {named(costed.target)}"
        print(f"{path}: {told}; open it in https://pytorch.org/memory_viz")
    return 0
