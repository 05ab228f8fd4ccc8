"""The time that training waits for a checkpoint, with the save in the background and without."""

from __future__ import annotations

from pathlib import Path

from planc.diag.fast_dataclass import dataclass
from planc.ir.target import Target
from planc.trainer.experiments.experiment import Facts, Machine
from planc.trainer.measure.coordinator import MeasuringError


@dataclass(frozen=True, kw_only=True)
class SaveStall:
    """`runs` saves of each kind in the tiny preset, on four processes of the host."""

    name: str
    title: str
    target: Target = "cuda"
    runs: int = 5
    minimum_s: float = 90.0

    def inputs(self, machine: Machine) -> str:
        """The target and the number of saves; `machine` changes nothing."""
        return f"{self.target} {self.runs}"

    def predict(self, machine: Machine, folder: Path) -> Facts:
        """Nothing for `machine`, and nothing in `folder`: planc does not predict disks."""
        return {}

    def measure(self, machine: Machine, folder: Path, timeout_s: float) -> Facts:
        """Seconds that training waits, as `planc bench saves` measures them in at most `timeout_s` seconds.

        `machine` and `folder` are not used.

        Raises MeasuringError when a rank fails.
        """
        from planc.trainer.measure import checkpoint_bench

        try:
            return dict(checkpoint_bench.measure(self.target, self.runs, timeout_s))
        except OSError as error:
            raise MeasuringError(str(error)) from error
