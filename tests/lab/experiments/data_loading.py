"""Tokens a second that a loader gives, beside those that a step needs."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

from planc.diag.errors import PlanError
from planc.diag.fast_dataclass import dataclass
from planc.driver import check
from planc.trainer.measure.coordinator import MeasuringError
from tests.lab.experiments.experiment import Facts, Machine, plan_text
from tests.lab.experiments.presets import preset_of

SETTINGS = {
    "bytes": '[train]\nlr = 1e-4\nsteps = 100\n[data]\nsource = "python-stdlib"\n',
    "tokens": '[train]\nlr = 1e-4\nsteps = 100\n[data]\nsource = "tokens"\npath = "tokens.npy"\n',
}
"""Sections of a preset, by what is read."""
FILE_TOKENS = 20_000_000


@dataclass(frozen=True, kw_only=True)
class DataLoading:
    """`batches` batches of the plan `sentences` from each source, drawn by one rank alone."""

    name: str
    title: str
    model: str
    batch: str
    sentences: tuple[str, ...]
    batches: int = 20
    minimum_s: float = 30.0

    def inputs(self, machine: Machine) -> str:
        """The plan for `machine`, and the number of batches."""
        return f"{self.batches}\n{self.plan(machine)}"

    def plan(self, machine: Machine) -> str:
        """The text of the plan on all devices of `machine`."""
        return plan_text(self.name, self.model, self.batch, self.sentences, machine)

    def predict(self, machine: Machine, folder: Path) -> Facts:
        """Tokens a second that training on `machine` takes; plan and presets are written to `folder`."""
        presets = [preset_of(self.name, self.plan(machine), settings, folder) for settings in SETTINGS.values()]
        report = check(presets[0].with_suffix(".plan"), target="cuda")
        if report.step is None:
            raise PlanError(list(report.diagnostics))
        return {"needed_tokens_per_s": report.step.tokens_per_s_per_device * machine.devices}

    def measure(self, machine: Machine, folder: Path, timeout_s: float) -> Facts:
        """Tokens a second of each source (a median batch), and the share of a predicted step on `machine` that a batch
        takes, in about `timeout_s` seconds at most; `folder` gets the presets and the data.

        Raises MeasuringError when a source cannot be read.
        """
        import numpy as np

        from planc.trainer.data.sources import source_of
        from planc.trainer.preset.load import load_preset

        ends = time.monotonic() + timeout_s
        needed: float = self.predict(machine, folder)["needed_tokens_per_s"]
        np.save(folder / "tokens.npy", np.random.default_rng(0).integers(0, 256, FILE_TOKENS, dtype=np.uint16))
        rates = {}
        for name, settings in SETTINGS.items():
            preset = load_preset(preset_of(self.name, self.plan(machine), settings, folder))
            try:
                source = source_of(preset)
            except PlanError as error:
                raise MeasuringError(str(error)) from error
            source.batch(1)
            seconds: list[float] = []
            while len(seconds) < self.batches and (time.monotonic() < ends or not seconds):
                began = time.monotonic()
                source.batch(2 + len(seconds))
                seconds.append(time.monotonic() - began)
            rates[name] = preset.plan.batch.tokens / median(seconds)
        return {"tokens_per_s": rates, "share_of_step": {name: needed / rate for name, rate in rates.items()}}
