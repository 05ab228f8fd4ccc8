"""Communication of a step that no compute covers, and the calls of NCCL, each predicted and then seen by a profiler."""

from __future__ import annotations

from collections import defaultdict
from hashlib import sha256
from pathlib import Path

from planc.diag.fast_dataclass import dataclass
from planc.driver import check, lower
from planc.ir.audit import Total
from planc.ir.report import Report
from tests.lab.experiments.experiment import Facts, Machine, plan_text
from tests.lab.measure import rows_of_ranks


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """One traced step of the plan `sentences`."""

    name: str
    title: str
    model: str
    batch: str
    sentences: tuple[str, ...]
    minimum_s: float = 60.0

    def inputs(self, machine: Machine) -> str:
        """The plan for `machine`."""
        return self.plan(machine)

    def plan(self, machine: Machine) -> str:
        """The text of the plan on all devices of `machine`."""
        return plan_text(self.name, self.model, self.batch, self.sentences, machine)

    def _written(self, machine: Machine, folder: Path) -> Path:
        path = folder / f"{self.name}.plan"
        path.write_text(self.plan(machine))
        return path

    def predict(self, machine: Machine, folder: Path) -> Facts:
        """Seconds of a step, of its communication and of the exposed part, and the calls and bytes by operation, on a
        device of `machine`; the plan is written to `folder`."""
        path = self._written(machine, folder)
        report = check(path, target="cuda")
        assert report.step is not None and report.collectives is not None
        return {
            "program_sha256": sha256(lower(path, "cuda").text.encode()).hexdigest(),
            "step_s": report.step.time_s,
            "communication_s": sum(timed.time_s for timed in report.collectives),
            "exposed_s": report.step.exposed_comm_s,
            "calls": {op: total.to_json() for op, total in calls_of(report).items()},
        }

    def measure(self, machine: Machine, folder: Path, timeout_s: float) -> Facts:
        """The same of the rank with the least exposed communication, which waited least for others, in at most
        `timeout_s` seconds on `machine`.

        The plan is written to `folder`. `calls` are None without NCCL. Raises MeasuringError when a rank fails.
        """
        path = self._written(machine, folder)
        (row,) = rows_of_ranks("trace_worker", (), {"plan": str(path)}, machine.devices, timeout_s)
        least = min(row["ranks"], key=lambda rank: rank["exposed_s"])
        expected = {op: total.to_json() for op, total in calls_of(check(path, target="cuda")).items()}
        return {
            "step_s": max(rank["step_s"] for rank in row["ranks"]),
            "communication_s": least["communication_s"],
            "exposed_s": least["exposed_s"],
            "calls": least["nccl"] or None,
            "calls_as_predicted": least["nccl"] == expected if least["nccl"] else None,
            "ranks": row["ranks"],
        }


def calls_of(report: Report) -> dict[str, Total]:
    """The calls and payload bytes of a step of the first pipeline stage in `report`, by operation."""
    counts: dict[str, int] = defaultdict(int)
    payload: dict[str, int] = defaultdict(int)
    for row in (timed.row for timed in report.collectives or () if timed.row.stage == 0 and timed.row.group_size > 1):
        counts[row.op] += row.count
        payload[row.op] += round(row.payload_bytes)
    return {op: Total(counts[op], payload[op]) for op in sorted(counts)}
