"""One plan trained by torch and by JAX on the same devices: do the losses agree within the budget of the dtype?"""

from __future__ import annotations

import time
from hashlib import sha256
from pathlib import Path

from planc.diag.errors import PlanError
from planc.diag.fast_dataclass import dataclass
from planc.driver import load, lower
from planc.ir.target import TARGETS
from planc.trainer.measure.coordinator import MeasuringError
from tests.lab.experiments.experiment import Facts, Machine, plan_text
from tests.lab.experiments.presets import preset_of

PRESET = """[train]
lr = 1e-3
steps = {steps}
warmup_steps = 2

[data]
source = "python-stdlib"
"""


@dataclass(frozen=True, kw_only=True)
class StacksAgree:
    """`steps` steps of the same preset on cuda and xla, and their crosscheck."""

    name: str
    title: str
    model: str
    batch: str
    sentences: tuple[str, ...]
    steps: int = 20
    minimum_s: float = 120.0

    def inputs(self, machine: Machine) -> str:
        """The plan for `machine`, and the number of steps."""
        return f"{self.steps}\n{self.plan(machine)}"

    def plan(self, machine: Machine) -> str:
        """The text of the plan on all devices of `machine`."""
        return plan_text(self.name, self.model, self.batch, self.sentences, machine)

    def predict(self, machine: Machine, folder: Path) -> Facts:
        """The budgets (nats a token) of the dtype, and the two programs; `folder` gets the plan and the preset."""
        from planc.trainer.receipt.crosscheck import BUDGETS, MEAN_BUDGETS

        source = self._preset(machine, folder).with_suffix(".plan")
        dtype = load(source).precision.compute
        programs = {target: sha256(lower(source, target).text.encode()).hexdigest() for target in TARGETS}
        budgets = {"budget": BUDGETS[dtype], "mean_budget": MEAN_BUDGETS.get(dtype)}
        return {"program_sha256": programs, "dtype": dtype, **budgets}

    def _preset(self, machine: Machine, folder: Path) -> Path:
        """A preset beside its plan. Raises PlanError when the plan has mistakes."""
        return preset_of(self.name, self.plan(machine), PRESET.format(steps=self.steps), folder)

    def measure(self, machine: Machine, folder: Path, timeout_s: float) -> Facts:
        """The crosscheck of both runs on `machine`, and their losses, in at most `timeout_s` seconds for both.

        `folder` gets the plan and the preset. Raises MeasuringError when a run fails.
        """
        from planc.trainer.receipt.crosscheck import crosscheck
        from planc.trainer.run.train import train

        preset = self._preset(machine, folder)
        ends = time.monotonic() + timeout_s
        receipts = []
        for target in TARGETS:
            try:
                receipts.append(train(preset, target, timeout_s=max(1.0, ends - time.monotonic())))
            except PlanError as error:
                raise MeasuringError(f"{target}: {error}") from error
        found = crosscheck(receipts)
        return {**found.to_json(), "losses": {r.target: list(r.losses) for r in receipts}}
