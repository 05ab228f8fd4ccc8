"""`planc calibrate -o FILE.plan`: fit a hardware file to measurements of this machine, or to runs with `--from`."""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from planc.cli.common import add_costed_target, print_json, refused, width
from planc.diag.errors import PlanError
from planc.diag.span import Span
from planc.files import write_atomically
from planc.ir.installed import need_framework
from planc.ir.target import NO_TARGET, TARGETS

if TYPE_CHECKING:
    from planc.calibration.fit_machine import Calibrated
    from planc.calibration.probes import MeasuredStep
    from planc.costing import CostedPlan
    from planc.ir.hardware import Cluster
    from planc.ir.plan import Plan
    from planc.ir.target import AnyTarget, Target

DP, TP, SP = "use ddp over dp", "use tp over tp", "use sp over tp"
STEPPED: dict[str, tuple[int, str, str, tuple[str, ...]]] = {
    # name: (sequences for each device, the rest of the batch, model, layout)
    "dp": (4, "128 tokens microbatch 4", "llama_tiny", (DP,)),
    "dp_short": (4, "32 tokens microbatch 1", "llama_tiny", (DP,)),
    "dp_micro": (8, "64 tokens microbatch 2", "llama_micro", (DP,)),
    "ddp_often": (16, "32 tokens microbatch 1", "llama_micro", ("use ddp over dp",)),
    "zero2": (8, "32 tokens microbatch 2", "llama_tiny", ("use zero2 over dp",)),
    "fsdp": (4, "64 tokens microbatch 4", "llama_tiny", ("use fsdp over dp",)),
    "dp_tp": (4, "64 tokens microbatch 4", "llama_tiny", (DP, TP)),
    "dp_tp_sp": (2, "64 tokens microbatch 2", "llama_tiny", (DP, TP, SP)),
}
"""Whole steps that are measured too: data parallelism, with sharded state, with gathered parameters, and with tensor
parallelism of two. They differ in tokens per microbatch, in microbatches, and in collectives per microbatch."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from", dest="table", metavar="FILE", help="fit to a table of measured runs (CSV or JSON), measure nothing"
    )
    parser.add_argument(
        "--machine", metavar="NODE", help="the bundled node it is declared as (cpu_local; with --from, the plans' own)"
    )
    parser.add_argument("--devices", type=int, default=4, metavar="N", help="how many work at once (4)")
    parser.add_argument("--dtype", action="append", choices=("fp32", "bf16", "fp16"), help="of matmuls (fp32)")
    parser.add_argument("--no-tables", action="store_true", help="measure no tables of matmuls and attention by size")
    parser.add_argument("--window", type=float, default=0.1, metavar="S", help="seconds of each measurement (0.1)")
    parser.add_argument(
        "-o", dest="output", default="calibrated.plan", metavar="FILE.plan", help="what to write (calibrated.plan)"
    )
    add_costed_target(parser)


def run(options: argparse.Namespace) -> int:
    from planc.trainer.measure.coordinator import MeasuringError

    if options.table:
        return _run_table(options)
    options.machine = options.machine or "cpu_local"
    options.target = options.target or installed()
    if options.target == NO_TARGET:
        print("planc calibrate: --target none costs the runs of --from; a stack is measured", file=sys.stderr)
        return 2
    if not options.target:
        print("planc calibrate: needs torch (planc[cuda]) or jax (planc[xla])", file=sys.stderr)
        return 2
    if not 2 <= options.devices <= 64:
        print("planc calibrate: from 2 to 64 devices are measured together", file=sys.stderr)
        return 2
    if not chips_of(options.machine):
        print(f"planc calibrate: no bundled hardware file has a node `{options.machine}`", file=sys.stderr)
        return 2
    try:
        need_framework(options.target, Span("planc calibrate", 1, 1, 1, 1))
        with tempfile.TemporaryDirectory() as folder:
            found = _found(options, Path(folder))
    except PlanError as error:
        refused(error.diagnostics, options.format)
        return 2
    except MeasuringError as error:
        print(f"planc calibrate: {error}", file=sys.stderr)
        return 2
    from planc.calibration.fit_machine import written
    from planc.language import library

    write_atomically(Path(options.output), written(library.machine_text(options.machine), found, note(options)))
    from planc.cli.views import calibrate_text

    if options.format == "json":
        print_json(calibrate_text.facts(found))
    else:
        print("\n".join(calibrate_text.lines(found, width())))
        print(f'\nwritten: {options.output}; a plan uses it with `import "{Path(options.output).name}"`')
    return 0


def _run_table(options: argparse.Namespace) -> int:
    """Fit to the measured runs in a table. Return the exit status: 2 if a file cannot be used."""
    from planc.calibration.fit_machine import written
    from planc.calibration.fit_steps import calibrate_from
    from planc.cli.views import calibrate_text

    path = Path(options.table)
    try:
        steps, peaks = runs_of_table(path, options.target)
        cluster = steps[0].sharded.plan.cluster
        text = _hardware_text(options.machine or cluster.name, cluster, path, path.parent / steps[0].name)
    except PlanError as error:
        refused(error.diagnostics, options.format)
        return 2
    found = calibrate_from(cluster, steps)
    own = (options.machine or cluster.name) == cluster.name
    fitted = found.changed() if own else found.found
    write_atomically(Path(options.output), written(text, fitted, _table_note(path, len(steps))))
    if options.format == "json":
        print_json(calibrate_text.facts(found.found, found.before_s))
    else:
        print("\n".join(calibrate_text.lines_of_steps(found, peaks)))
        print(f'\nwritten: {options.output}; a plan uses it with `import "{Path(options.output).name}"`')
    return 0


def runs_of_table(
    path: Path, target: AnyTarget | None = None
) -> tuple[list[MeasuredStep], list[tuple[float, float] | None]]:
    """Return the measured steps in the table at `path`, and each step's (measured, predicted) peak memory in bytes,
    None if not measured. Predictions are for `target`, else the receipt's target, else the plan's own. Raises PlanError
    if the table, a plan or a receipt cannot be used."""
    from planc.calibration.measured_table import read_table, unusable_table
    from planc.calibration.probes import MeasuredStep
    from planc.trainer.receipt.receipt import read_receipt

    steps: list[MeasuredStep] = []
    peaks: list[tuple[float, float] | None] = []
    costs: dict[tuple[str, AnyTarget | None], CostedPlan] = {}  # a plan has many rows
    for run in read_table(path):
        receipt = read_receipt(path.parent / run.receipt) if run.receipt else None
        ran = next((t for t in TARGETS if receipt and receipt.target == t), None)
        key = run.plan, target or ran
        if key not in costs:
            costs[key] = _costed(path.parent / run.plan, key[1])
        costed = costs[key]
        if other := steps and _other_machine(costed.sharded.plan.cluster, steps[0].sharded.plan.cluster):
            raise unusable_table(path, run.line, f"{run.plan} is on {other}")
        seconds = receipt.step_time_s if receipt else run.seconds or 0.0
        if not seconds > 0:
            raise unusable_table(path, run.line, f"{run.receipt} has no step time")
        steps.append(MeasuredStep.of(run.plan, costed, seconds))
        peak = receipt.peak_memory_gib * 2**30 if receipt and receipt.peak_memory_gib else run.peak_bytes
        peaks.append((peak, costed.memory.per_device_gib.tensors * 2**30) if peak else None)
    return steps, peaks


def _costed(plan: Path | Plan, target: AnyTarget | None) -> CostedPlan:
    """Return the plan with its cost, as in `planc check`. Raises PlanError if it has errors."""
    from planc.driver import examine

    examined = examine(plan, target=target, targets=())
    if examined.costed is None:
        raise PlanError(examined.report.diagnostics)
    return examined.costed


def _other_machine(cluster: Cluster, first: Cluster) -> str:
    """Return a clause that says how two plans' machines differ; "" if they have the same hardware numbers."""
    if cluster.chip.name != first.chip.name:
        return f"{cluster.chip.name}, other plans on {first.chip.name}"
    same = (cluster.chip, cluster.link, cluster.levels) == (first.chip, first.link, first.levels)
    return "" if same else f"`{cluster.name}`, whose numbers are not those of the other plans' `{first.name}`"


def _hardware_text(machine: str, cluster: Cluster, path: Path, plan: Path) -> str:
    """Return the text of the hardware file of `machine`: bundled, or imported by the plan file `plan`. Raises PlanError
    if there is none, or if its chip is another one than the plan's."""
    from planc.calibration.measured_table import unusable_table
    from planc.driver import user_path
    from planc.files import MAX_TEXT_BYTES, read_text
    from planc.language import library

    if machine in library.machines():
        text = library.machine_text(machine)
    elif machine == cluster.name and cluster.sources:
        text = read_text(Path(user_path(cluster.sources[0], plan)), MAX_TEXT_BYTES)
    else:
        raise unusable_table(path, 1, f"no bundled hardware file has a node `{machine}`")
    if not re.search(rf"^chip +{re.escape(cluster.chip.name)}\(", text, re.MULTILINE):
        raise unusable_table(path, 1, f"`{machine}` has another chip than the plans' {cluster.chip.name}")
    return text


def _table_note(path: Path, runs: int) -> list[str]:
    from datetime import UTC, datetime

    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return [f"fitted {when} by `planc calibrate --from {path.name}` to the step times of {runs} runs"]


def installed() -> Target | None:
    """Return the target whose framework is installed; cuda if both are."""
    from importlib.util import find_spec

    stacks: tuple[tuple[Target, str], ...] = (("cuda", "torch"), ("xla", "jax"))
    return next((target for target, package in stacks if find_spec(package)), None)


def _found(options: argparse.Namespace, folder: Path) -> Calibrated:
    from planc.calibration.fit_machine import calibrate
    from planc.calibration.machine_tables import table_probes
    from planc.calibration.probes import probes
    from planc.driver import load
    from planc.trainer.measure.coordinator import measure

    plans = stepped(folder, options.machine, options.devices)
    loaded = {path.stem: load(path, target=options.target) for path in plans}
    cluster = next(iter(loaded.values())).cluster
    dtypes, large = options.dtype or ("fp32",), bool(cluster.chip.cores)
    fitted = probes(options.devices, dtypes, large=large)
    tables = [] if options.no_tables else table_probes(dtypes, large=large)
    tell = _print_progress if sys.stderr.isatty() else _no_progress
    took = measure(options.target, options.devices, [*fitted, *tables], plans, window_s=options.window, tell=tell)
    steps = [step_of(plan, took.step_s(name), options.target) for name, plan in loaded.items()]
    return calibrate(cluster, took.probes[: len(fitted)], steps, took.probes[len(fitted) :])


def stepped(folder: Path, machine: str, devices: int) -> list[Path]:
    """Write plans on `devices` devices of `machine`, whose steps will be measured, to `folder`. Return their paths."""
    paths = []
    for name, (sequences, rest, model, said) in STEPPED.items():
        ways = 2 if TP in said and devices % 2 == 0 else 1
        layout = said if ways > 1 else tuple(s for s in said if not s.endswith(" tp"))
        mesh = f"dp {devices // ways} > tp {ways}" if ways > 1 else f"dp {devices}"
        paths.append(folder / f"{name}.plan")
        batch = f"{sequences * devices} x {rest}"
        paths[-1].write_text(plan_text(name, model, batch, mesh, layout, machine, devices))
    return paths


def plan_text(
    name: str, model: str, batch: str, mesh: str, layout: Sequence[str], machine: str, devices: int, given: str = ""
) -> str:
    """Return the text of a plan on `devices` devices of `machine`: the arguments are the texts of its sentences.
    `given` is a hardware file to import ("": none)."""
    cluster = f"{devices} x {machine}" if chips_of(machine) == 1 else f"{machine}({devices})"
    lines = [f'import "{given}"'] if given else []
    lines += [f"model {model}", f"batch {batch}", f"cluster {cluster}", f"mesh {mesh}", *layout]
    return "\n".join([f"plan {name}", *lines, "optimizer adamw", "compute fp32 reduce fp32"]) + "\n"


def chips_of(machine: str) -> int:
    """Return the number of chips of the bundled node called `machine`; 0 if there is no bundled node of that name."""
    from planc.language import library

    text = library.machine_text(machine) if machine in library.machines() else ""
    found = re.search(rf"^node\s+{re.escape(machine)}\s*=\s*(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else 0


def step_of(plan: Plan, seconds: float, target: Target) -> MeasuredStep:
    """Return the step of `plan` on `target`, with its measured `seconds`. Raises PlanError if the target refuses the
    plan."""
    from planc.calibration.probes import MeasuredStep

    return MeasuredStep.of(plan.name, _costed(plan, target), seconds)


def note(options: argparse.Namespace) -> list[str]:
    """Return the comment lines of the hardware file: when, how and under which load it was measured."""
    from datetime import UTC, datetime

    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return [
        f"measured {when} by `planc calibrate --target {options.target} --devices {options.devices}`"
        f" on {os.cpu_count()} cores, load {load:.1f}",
        "every device works at once, as in training; rates are those that are reached",
    ]


def _print_progress(done: int, of: int) -> None:
    print(f"\r{done} of {of}", end="" if done < of else "\n", file=sys.stderr, flush=True)


def _no_progress(done: int, of: int) -> None:
    """Print nothing, where standard error is no terminal."""
