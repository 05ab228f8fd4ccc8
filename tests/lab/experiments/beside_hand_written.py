"""The emitted program beside the same model and layout written by hand with torch, and beside torchtitan's."""

from __future__ import annotations

from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from planc.diag.fast_dataclass import dataclass
from planc.driver import check, load, lower
from tests.lab.experiments.experiment import Facts, Machine, SkippedError, plan_text
from tests.lab.measure import rows_of_ranks
from tests.lab.measure.paired_ratios import median_interval

MEDIAN_BAR, UPPER_BAR = 1.02, 1.05
"""The emitted program's step may take this much of the other's: the median of the ratios, and the upper end of its
95 % interval."""
RELEASE = "0.2"
"""torchtitan's releases whose interface `tests.lab.measure.titan` uses."""
STATE_BYTES = 16
"""fp32 parameter, gradient and two moments of the second program."""


@dataclass(frozen=True, kw_only=True)
class BesideHandWritten:
    """`pairs` steps of each program, in turn, from the same weights on the same tokens."""

    name: str
    title: str
    model: str
    batch: str
    sentences: tuple[str, ...]
    other: Literal["by_hand", "torchtitan"] = "by_hand"
    pairs: int = 40
    minimum_s: float = 120.0

    def inputs(self, machine: Machine) -> str:
        """The plan for `machine`, and the number of pairs."""
        return f"{self.other} {self.pairs}\n{self.plan(machine)}"

    def plan(self, machine: Machine) -> str:
        """The text of the plan on all devices of `machine`."""
        return plan_text(self.name, self.model, self.batch, self.sentences, machine)

    def _written(self, machine: Machine, folder: Path) -> Path:
        path = folder / f"{self.name}.plan"
        path.write_text(self.plan(machine))
        return path

    def predict(self, machine: Machine, folder: Path) -> Facts:
        """The bars of the ratio, and the peak (GiB) with both programs' state on a device of `machine`; the plan is
        written to `folder`. Raises SkippedError where the other program's package is absent."""
        if self.other == "torchtitan":
            _need_torchtitan()
        path = self._written(machine, folder)
        report = check(path, target="cuda")
        assert report.memory is not None and report.step is not None
        beside_gib = STATE_BYTES * load(path).model.parameters / machine.devices / 2**30
        return {
            "program_sha256": sha256(lower(path, "cuda").text.encode()).hexdigest(),
            "median_bar": MEDIAN_BAR,
            "upper_bar": UPPER_BAR,
            "emitted_s": report.step.time_s,
            "peak_gib": report.memory.per_device_gib.total + beside_gib,
            "capacity_gib": report.memory.capacity_gib,
        }

    def measure(self, machine: Machine, folder: Path, timeout_s: float) -> Facts:
        """The ratio of the pairs' seconds with its interval, in at most `timeout_s` seconds on `machine`.

        The plan is written to `folder`. Raises MeasuringError when a process fails.
        """
        task = {"plan": str(self._written(machine, folder)), "pairs": self.pairs, "other": self.other}
        rows = rows_of_ranks("beside_by_hand", (), task, machine.devices, timeout_s)
        seconds = [row["seconds"] for row in rows if row["counts"]]
        median, lower_end, upper_end = median_interval([emitted / other for emitted, other in seconds])
        return {
            "ratio": median,
            "ratio_lower": lower_end,
            "ratio_upper": upper_end,
            "pairs": len(seconds),
            "emitted_s": min(s for s, _ in seconds),
            "by_hand_s": min(s for _, s in seconds),
            "loss_apart": max(abs(a - b) for a, b in (row["losses"] for row in rows)),
            "ok": median <= MEDIAN_BAR and upper_end <= UPPER_BAR,
        }


def _need_torchtitan() -> None:
    """Raise SkippedError unless the release of torchtitan is here that `tests.lab.measure.titan` is written for."""
    try:
        found = version("torchtitan")
    except PackageNotFoundError:
        raise SkippedError("torchtitan is not installed") from None
    if not found.startswith(f"{RELEASE}."):
        raise SkippedError(f"torchtitan {found} is installed, and this is written for {RELEASE}")
