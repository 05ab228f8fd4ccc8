"""`planc bench gpu`: the bundled Llama trained on this machine's CUDA devices, beside what planc predicts.

Random tokens, bf16, flash attention, compiled blocks: steps, MFU and peak memory. Two models: about 1.5 B
parameters, and the one with the most layers of Llama 3 8B that planc says will fit.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planc.cli.common import print_json
from planc.cli.views.report_text import seconds, strong
from planc.cli.views.table import table
from planc.driver import cost
from planc.ir.target import Target

NODES = {"H100": "h100_node", "H200": "h200_node", "H800": "h800_node", "A100": "a100_node", "L40S": "l40s_node"}
NODES |= {"GB300": "gb300_nvl72", "GB200": "gb200_nvl72", "B300": "b300_node", "B200": "b200_node"}
"""Device names with the bundled machine of each; the first that occurs in the name counts."""
SMALL = "llama3_8b(layers = 16, embed = 2048, heads = 32, head_dim = 64, ffn = 8192)"
LARGE = "llama3_8b(layers = {layers})"
LAYERS = range(32, 0, -2)
BATCH, STEPS = "{sequences} x 4096 tokens microbatch {microbatch}", 10
PLAN = """plan {name}
model     {model}
batch     {batch}
cluster   {cluster}
mesh      fsdp {devices}
use       fsdp over fsdp
optimizer adamw
compute   bf16 reduce fp32
attention.core as flash
recompute {recompute}
compile   blocks as inductor
"""
HEAD = ("plan", "step", "predicted", "MFU", "predicted", "peak GiB", "predicted", "in use")


@dataclass(frozen=True)
class Row:
    """One plan, measured and predicted."""

    name: str
    step_s: float
    predicted_s: float
    mfu: float
    predicted_mfu: float
    peak_gib: float | None
    predicted_gib: float
    features: tuple[str, ...]


def run(options: argparse.Namespace) -> int:
    """2 where there is no CUDA device, or none that planc has numbers of."""
    from planc.trainer.run import devices as machine

    name, devices = machine.cuda_devices()
    node = next((n for words, n in NODES.items() if words in name), "")
    if not node:
        what = f"no numbers of a `{name}`" if name else "no CUDA device here, and this bench is of one"
        print(f"planc bench gpu: {what}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        rows = measured(written(Path(folder), f"{node}({devices})", devices), "cuda", devices, options.runs)
    if options.format == "json":
        print_json({"device": name, "devices": devices, "rows": [row.__dict__ for row in rows]}, "planc.bench.gpu/1")
        return 0
    print(f"{strong(name)} x {devices}")
    print("\n".join(table(HEAD, [_cells(row) for row in rows], left=1, left_last=True)))
    return 0


def written(folder: Path, cluster: str, devices: int) -> list[Path]:
    """The plans, those alone that fit."""
    small = _write_plan(folder, "small", SMALL, cluster, devices, microbatch=4, recompute="none")
    large = (
        _write_plan(folder, f"layers_{n}", LARGE.format(layers=n), cluster, devices, microbatch=1, recompute="blocks")
        for n in LAYERS
    )
    first = next((path for path in large if _fits_in_memory(path)), None)
    return [path for path in (small, first) if path is not None and _fits_in_memory(path)]


def _write_plan(
    folder: Path, name: str, model: str, cluster: str, devices: int, *, microbatch: int, recompute: str
) -> Path:
    batch = BATCH.format(sequences=8 * devices, microbatch=microbatch)
    path = folder / f"{name}.plan"
    text = PLAN.format(name=name, model=model, batch=batch, cluster=cluster, devices=devices, recompute=recompute)
    path.write_text(text)
    return path


def _fits_in_memory(path: Path) -> bool:
    report = cost(path, target="cuda")
    assert report.memory is not None, [d.message for d in report.diagnostics]
    return report.memory.per_device_gib.total <= report.memory.capacity_gib


def measured(plans: list[Path], target: Target, devices: int, runs: int) -> list[Row]:
    """Each plan's steps on this machine. Raises MeasuringError when a process fails."""
    from planc.trainer.measure.coordinator import measure

    found = measure(target, devices, plans=plans, steps=max(STEPS, runs))
    return [_row(path, target, found) for path in plans]


def _row(path: Path, target: Target, found: Any) -> Row:
    report = cost(path, target=target)
    assert report.step is not None and report.memory is not None
    step_s = found.step_s(path.stem)
    return Row(
        name=path.stem,
        step_s=step_s,
        predicted_s=report.step.time_s,
        mfu=report.step.mfu * report.step.time_s / step_s,
        predicted_mfu=report.step.mfu,
        peak_gib=found.peak_gib[path.stem],
        predicted_gib=report.memory.per_device_gib.total,
        features=found.features[path.stem],
    )


def _cells(row: Row) -> list[str]:
    peak = "" if row.peak_gib is None else f"{row.peak_gib:.1f}"
    return [
        row.name,
        seconds(row.step_s),
        seconds(row.predicted_s),
        f"{row.mfu:.1%}",
        f"{row.predicted_mfu:.1%}",
        peak,
        f"{row.predicted_gib:.1f}",
        ", ".join(row.features),
    ]
