"""Traces the first step of a run on fake devices: `planc train --dry-run` shows that the program runs, and what it
would do.

The step is traced (torch) or lowered (JAX) in a separate process, with fewer data-parallel ranks and microbatches than
the plan. The work of a rank per microbatch is the same as in the plan.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from argparse import ArgumentParser
from dataclasses import asdict, dataclass, field, replace
from typing import Any, get_args

from planc.backends.common.shrunk import shrunk, size_changes
from planc.checks import check_plan
from planc.ir.plan import Plan
from planc.ir.read_plan import read_plan
from planc.ir.target import Target
from planc.lowering import lower_plan

MOST_DEVICES = 64
"""Target for the number of fake devices, if the data-parallel axes can be reduced so far."""
GIB = 2**30


@dataclass(frozen=True)
class DryRun:
    """Result of a dry run. `changed` describes how the traced plan is smaller than the plan; `found` is the backend's
    result."""

    devices: int
    microbatches: int
    changed: list[str]
    seconds: float
    found: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the result as lines of text for people."""
        head = f"first step on {self.devices} fake devices, {self.microbatches} microbatches ({self.seconds:.1f} s)"
        return [
            head,
            *(f"  {change}" for change in self.changed),
            *(f"  {line}" for line in _inventory_lines(self.found)),
        ]


def small(plan: Plan) -> Plan:
    """Return `plan` reduced for tracing: few ranks, and at most as many microbatches as the pipeline has ranks."""
    fewer = shrunk(plan, MOST_DEVICES)
    batch, stages = fewer.batch, plan.mesh.axis(plan.split.axis).size if plan.split else 1
    microbatches = batch.sequences // fewer.data_parallel // batch.microbatch_sequences
    kept = min(microbatches, stages)
    sequences = kept * fewer.data_parallel * batch.microbatch_sequences
    return replace(fewer, batch=replace(batch, sequences=sequences))


def dry_run(plan: Plan, target: Target) -> tuple[DryRun | None, str]:
    """Trace the first step of `plan` for `target` in a separate process. Return the result and "".

    If that process fails, return None and the text that it wrote to standard error.
    """
    words = ["-P", "-m", "planc.trainer.run.dry_run", "--target", target]
    given = json.dumps(plan.to_json())
    done = subprocess.run([sys.executable, *words], input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        return None, done.stderr
    return DryRun(**json.loads(done.stdout.splitlines()[-1])), ""


def main() -> int:
    """Trace the plan that is on stdin, and print a DryRun as JSON. Returns 0, the exit status."""
    parser = ArgumentParser(prog="python -m planc.trainer.run.dry_run", description="The compiled plan is on stdin.")
    parser.add_argument("--target", choices=get_args(Target), required=True)
    options = parser.parse_args()
    plan = read_plan(json.load(sys.stdin))
    traced, began = small(plan), time.monotonic()
    program = lower_plan(check_plan(traced), options.target, version="installed")
    found = program.backend.dry_run(program)
    batch = traced.batch
    microbatches = batch.sequences // traced.data_parallel // batch.microbatch_sequences
    changed = [*(text.partition(";")[0] for text in size_changes(plan, traced)), *_fewer(plan, microbatches)]
    result = DryRun(traced.mesh.devices, microbatches, changed, time.monotonic() - began, found)
    print(json.dumps(result.to_json()))
    return 0


def _fewer(plan: Plan, microbatches: int) -> list[str]:
    whole = plan.batch.sequences // plan.data_parallel // plan.batch.microbatch_sequences
    return [f"fewer microbatches: {whole} -> {microbatches}"] if whole != microbatches else []


def _inventory_lines(found: dict[str, Any]) -> list[str]:
    lines = [
        f"{row['count']:>6} x {row['op']} over {row['axis']}, {row['dtype']}, {row['bytes'] / GIB:.3f} GiB"
        for row in found.get("collectives", [])
    ]
    if "peak_bytes" in found:
        lines.append(f"peak memory of its first rank {found['peak_bytes'] / GIB:.2f} GiB, at {found['peak_at']}")
    if "operations" in found:
        lines.append(
            f"{found['operations']:,} StableHLO operations; state {found['state_bytes'] / GIB:.2f} GiB a device"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
