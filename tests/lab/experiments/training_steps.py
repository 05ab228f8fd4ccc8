"""Steps of a plan on this machine: seconds, MFU and peak memory, each predicted before it is measured."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from planc.diag.errors import PlanError
from planc.diag.fast_dataclass import dataclass
from planc.driver import check, lower
from planc.ir.report import Report
from planc.ir.target import Target
from planc.trainer.measure.coordinator import MeasuringError, measure
from tests.lab.experiments.experiment import Facts, Machine, plan_text

OUT_OF_MEMORY = ("out of memory", "OutOfMemoryError", "RESOURCE_EXHAUSTED")
"""Words of torch and XLA when a device has no room."""


@dataclass(frozen=True, kw_only=True)
class TrainingSteps:
    """`steps` optimizer steps of the plan `sentences` on random tokens."""

    name: str
    title: str
    model: str
    batch: str
    sentences: tuple[str, ...]
    target: Target = "cuda"
    steps: int = 6
    minimum_s: float = 60.0

    def inputs(self, machine: Machine) -> str:
        """The plan for `machine`, its target and number of steps."""
        return f"{self.target} {self.steps}\n{self.plan(machine)}"

    def plan(self, machine: Machine) -> str:
        """The text of the plan on all devices of `machine`."""
        return plan_text(self.name, self.model, self.batch, self.sentences, machine)

    def predict(self, machine: Machine, folder: Path) -> Facts:
        """Seconds, MFU, tokens/s and peak GiB of a step on `machine`; the plan is written to `folder`.

        `peak_gib` are tensors, which torch and JAX count on an accelerator, and all of a process on the CPU;
        `device_gib` is what a device must have.
        """
        report = self._report(machine, folder)
        program = lower(self._written(machine, folder), self.target)
        assert report.step is not None and report.memory is not None
        parts = report.memory.per_device_gib
        return {
            "program_sha256": sha256(program.text.encode()).hexdigest(),
            "step_s": report.step.time_s,
            "mfu": report.step.mfu,
            "tokens_per_s": report.step.tokens_per_s_per_device * machine.devices,
            "peak_gib": parts.tensors if machine.is_accelerator else parts.total,
            "device_gib": parts.total,
            "capacity_gib": report.memory.capacity_gib,
            "fits": parts.total <= report.memory.capacity_gib,
        }

    def _report(self, machine: Machine, folder: Path) -> Report:
        """The cost of the plan's program. Raises PlanError for mistakes other than that it does not fit."""
        path = self._written(machine, folder)
        report = check(path, target=self.target)
        refused = [d for d in report.diagnostics if d.severity == "error" and d.code != "E0501"]
        if refused or report.step is None:
            raise PlanError(refused or list(report.diagnostics))
        return report

    def _written(self, machine: Machine, folder: Path) -> Path:
        path = folder / f"{self.name}.plan"
        path.write_text(self.plan(machine))
        return path

    def measure(self, machine: Machine, folder: Path, timeout_s: float) -> Facts:
        """The same figures of the fastest undisturbed step of `steps`, in at most `timeout_s` seconds on `machine`.

        The plan is written to `folder`. Raises MeasuringError when a process fails but for want of memory.
        """
        path = self._written(machine, folder)
        try:
            found = measure(self.target, machine.devices, plans=[path], steps=self.steps, timeout_s=timeout_s)
        except MeasuringError as error:
            if any(words in str(error) for words in OUT_OF_MEMORY):
                return {"fits": False}
            raise
        report = self._report(machine, folder)
        assert report.step is not None
        step_s = found.step_s(self.name)
        return {
            "step_s": step_s,
            "steps_s": list(found.steps[self.name]),
            "mfu": report.step.mfu * report.step.time_s / step_s,
            "tokens_per_s": report.step.tokens_per_s_per_device * machine.devices * report.step.time_s / step_s,
            "peak_gib": found.peak_gib[self.name],
            "reserved_gib": found.reserved_gib.get(self.name),
            "features": list(found.features[self.name]),
            "disturbed": found.disturbed(self.name),
            "fits": True,
        }
