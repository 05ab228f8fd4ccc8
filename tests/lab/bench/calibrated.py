"""`planc bench calibrated`: layouts that no calibration has seen, measured beside what a hardware file predicts."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from planc.cli.commands.calibrate import chips_of, plan_text, step_of
from planc.cli.common import print_diagnostics, print_json
from planc.cli.views.report_text import strong
from planc.cli.views.table import table
from planc.diag.errors import PlanError
from planc.files import MAX_TEXT_BYTES, read_bounded
from planc.ir.target import Target
from planc.picture.units import seconds

BATCH, MODEL, DEVICES = "32 x 64 tokens microbatch 2", "llama_tiny", 4
FSDP, TP, SP = "use fsdp over fsdp", "use tp over tp", "use sp over tp"
LAYOUTS: dict[str, tuple[str, ...]] = {
    # name: (mesh, sentence, ...)
    "fsdp": ("fsdp 4", FSDP),
    "fsdp_recomputed": ("fsdp 4", FSDP, "recompute blocks"),
    "fsdp_per_step": ("fsdp 4", FSDP, "gather params per step"),
    "zero1": ("dp 4", "use zero1 over dp"),
    "hsdp": ("replica 2 > fsdp 2", "use hsdp over replica, fsdp"),
    "tp": ("tp 4", TP),
    "fsdp_tp": ("fsdp 2 > tp 2", FSDP, TP),
    "fsdp_tp_sp": ("fsdp 2 > tp 2", FSDP, TP, SP),
}
"""None of them is plain data parallelism, whose steps a calibration measures; the batch is another one too."""


@dataclass(frozen=True)
class Compared:
    """A layout's fastest step, and the predicted one."""

    layout: str
    measured_s: float
    """Less what other work on the machine took of it."""
    predicted_s: float
    others: float
    """The share of the processors that other work had meanwhile."""

    @property
    def error(self) -> float:
        """Relative error, a fraction: predicted over measured seconds, less one."""
        return self.predicted_s / self.measured_s - 1


def run(options: argparse.Namespace) -> int:
    """The table of layouts. 2 where the hardware file is not one, or a process fails."""
    from planc.trainer.measure.coordinator import MeasuringError

    if not options.hardware or not options.target:
        print("planc bench calibrated: needs --hardware FILE.plan and --target", file=sys.stderr)
        return 2
    if not chips_of(options.machine):
        print(f"planc bench calibrated: no bundled hardware file has a node `{options.machine}`", file=sys.stderr)
        return 2
    try:
        with tempfile.TemporaryDirectory() as folder:
            rows = compared(Path(options.hardware), options.machine, options.target, Path(folder))
    except PlanError as error:
        print_diagnostics(error.diagnostics)
        return 2
    except (MeasuringError, OSError) as error:
        print(f"planc bench calibrated: {getattr(error, 'strerror', None) or error}", file=sys.stderr)
        return 2
    errors = [abs(row.error) for row in rows]
    if options.format == "json":
        facts = [{**asdict(row), "error": row.error} for row in rows]
        answer = {"target": options.target, "load": os.getloadavg()[0], "rows": facts, "median": median(errors)}
        print_json(answer, "planc.bench.calibrated/1")
        return 0
    print(f"{strong(options.hardware)} on {options.target}, {DEVICES} devices, load {os.getloadavg()[0]:.1f}")
    cells = [
        [r.layout, seconds(r.measured_s), seconds(r.predicted_s), f"{r.error:+.1%}", f"{r.others:.0%}"] for r in rows
    ]
    print("\n".join(table(("layout", "measured", "predicted", "error", "others had"), cells, left=1)))
    print(f"median error {median(errors):.1%}, largest {max(errors):.1%}")
    return 0


def compared(hardware: Path, machine: str, target: Target, folder: Path) -> list[Compared]:
    """Every layout's step, measured and predicted. Raises PlanError, MeasuringError."""
    from planc.driver import load
    from planc.trainer.measure.coordinator import MeasuringError, measure

    (folder / "machine.plan").write_bytes(read_bounded(hardware, MAX_TEXT_BYTES))
    plans = {}
    for name, (mesh, *layout) in LAYOUTS.items():
        path = folder / f"{name}.plan"
        path.write_text(plan_text(name, MODEL, BATCH, mesh, layout, machine, DEVICES, "machine.plan"))
        plans[path] = load(path, target=target)
        if plans[path].cluster.sources != ("machine.plan",):
            raise MeasuringError(f"{hardware} declares no node `{machine}`")
    took = measure(target, DEVICES, plans=list(plans))
    rows = []
    for path, plan in plans.items():
        measured = took.step_s(path.stem)
        predicted = step_of(plan, measured, target).predicted_s(plan.cluster)
        rows.append(Compared(path.stem, measured, predicted, took.disturbed(path.stem)))
    return rows
