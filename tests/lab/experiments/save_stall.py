"""The time that training waits for a checkpoint, with the save in the background and without."""

from __future__ import annotations

from pathlib import Path

from planc.diag.fast_dataclass import dataclass
from planc.driver import load
from planc.ir.target import Target
from planc.trainer.measure.coordinator import MeasuringError
from tests.lab.experiments.experiment import Facts, Machine, plan_text
from tests.lab.experiments.presets import preset_of

SETTINGS = """[train]
lr = 1e-4
steps = 100
"""
STATE_BYTES = 12
"""fp32 parameter and two moments."""


@dataclass(frozen=True, kw_only=True)
class SaveStall:
    """`runs` saves of each kind by a run of `model` over all devices."""

    name: str
    title: str
    model: str
    target: Target = "cuda"
    runs: int = 5
    minimum_s: float = 90.0

    def inputs(self, machine: Machine) -> str:
        """The plan for `machine`, the target and the number of saves."""
        return f"{self.target} {self.runs}\n{self.plan(machine)}"

    def plan(self, machine: Machine) -> str:
        """The text of the plan on all devices of `machine`."""
        batch = f"{2 * machine.devices} x 128 tokens microbatch 2"
        return plan_text(self.name, self.model, batch, ("mesh fsdp {devices}", "use fsdp over fsdp"), machine)

    def predict(self, machine: Machine, folder: Path) -> Facts:
        """The bytes of a checkpoint of `machine`; planc does not predict disks. `folder` gets the plan and preset."""
        preset = preset_of(self.name, self.plan(machine), SETTINGS, folder)
        return {"checkpoint_bytes": STATE_BYTES * load(preset.with_suffix(".plan")).model.parameters}

    def measure(self, machine: Machine, folder: Path, timeout_s: float) -> Facts:
        """Seconds that training waits, as `planc bench saves` measures them in at most `timeout_s` seconds.

        The run has a rank for each device of `machine`; `folder` gets its plan and preset. Raises MeasuringError when a
        rank fails.
        """
        from tests.lab.measure import checkpoint_bench

        preset = preset_of(self.name, self.plan(machine), SETTINGS, folder)
        try:
            return dict(checkpoint_bench.measure(self.target, self.runs, timeout_s, preset))
        except OSError as error:
            raise MeasuringError(str(error)) from error
