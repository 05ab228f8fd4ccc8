"""`planc bench accelerator`: experiments on this machine's devices, each predicted before it is measured.

They stop in time and go on where they were: `docs/guide/accelerator.md`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from planc.cli.common import print_json, refused
from planc.cli.views.report_text import strong
from planc.cli.views.table import table
from planc.diag.errors import PlanError
from planc.diag.span import Span
from planc.files import write_atomically
from planc.ir.installed import need_framework
from planc.picture.units import seconds

if TYPE_CHECKING:
    from tests.lab.experiments.experiment import Experiment, Machine
    from tests.lab.experiments.records import Record

HEAD = ("experiment", "", "step", "predicted", "peak GiB", "predicted", "shows")


def run(options: argparse.Namespace) -> int:
    """0 when every experiment is measured, but for those that need what the machine may lack; 1 where one is refused,
    failed or left for another slice; 2 where torch is absent, the machine is unknown or the state folder cannot be
    written."""
    from tests.lab.experiments.page import page
    from tests.lab.experiments.runner import find_machine
    from tests.lab.experiments.suite import experiments

    try:
        if not options.dry:
            need_framework("cuda", Span("planc bench accelerator", 1, 1, 1, 1))
    except PlanError as error:
        refused(error.diagnostics, options.format)
        return 2
    machine = _as_if(options.machine, options.devices) if options.dry else find_machine()
    if machine is None:
        print("planc bench accelerator: no bundled hardware file has this device", file=sys.stderr)
        return 2
    suite = experiments(machine)
    try:
        records = _dry(suite, machine) if options.dry else _run(suite, machine, options)
        if options.page:
            write_atomically(Path(options.page), page(machine, records))
    except OSError as error:
        print(f"planc bench accelerator: {error}", file=sys.stderr)
        return 2
    if options.format == "json":
        answer = {"device": machine.name, "devices": machine.devices, "node": machine.node}
        print_json({**answer, "experiments": [r.model_dump(mode="json") for r in records]}, "planc.bench.accelerator/1")
    else:
        print(f"{strong(machine.name)} x {machine.devices}, declared as {machine.node}")
        print("\n".join(table(HEAD, [_cells(r) for r in records], left=2, left_last=True)))
    done = "predicted" if options.dry else "measured"
    return int(any(r.status not in (done, "skipped") for r in records))


def _as_if(node: str, devices: int) -> Machine:
    """So many devices of a bundled node, or two processes of a CPU."""
    from tests.lab.experiments.experiment import CPU, Machine

    return CPU if node == CPU.node else Machine(name=node, node=node, devices=max(1, devices))


def _dry(suite: Sequence[Experiment], machine: Machine) -> list[Record]:
    """Every experiment's prediction, and its program: nothing is run."""
    from tests.lab.experiments.runner import predict

    return [predict(experiment, machine) for experiment in suite]


def _run(suite: Sequence[Experiment], machine: Machine, options: argparse.Namespace) -> list[Record]:
    from tests.lab.experiments.runner import run

    def tell(title: str) -> None:
        print(f"planc bench accelerator: {title}", file=sys.stderr, flush=True)

    return run(suite, machine, Path(options.state), options.minutes * 60, tell)


def _cells(record: Record) -> list[str]:
    predicted, measured = record.predicted or {}, record.measured or {}
    return [
        record.name,
        record.status,
        *(seconds(facts["step_s"]) if "mfu" in facts else "" for facts in (measured, predicted)),
        *(f"{facts['peak_gib']:.2f}" if facts.get("peak_gib") else "" for facts in (measured, predicted)),
        record.reason or record.title,
    ]
