"""The first layouts of a search, run: are they as fast in the order that planc gives them?"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from planc.diag.fast_dataclass import dataclass
from planc.driver import search
from planc.trainer.measure.coordinator import measure
from tests.lab.experiments.experiment import Facts, Machine, plan_text


@dataclass(frozen=True, kw_only=True)
class LayoutsRanked:
    """The `top` layouts of the plan `sentences`, which leaves something free with `?`."""

    name: str
    title: str
    model: str
    batch: str
    sentences: tuple[str, ...]
    top: int = 5
    steps: int = 4
    minimum_s: float = 150.0

    def inputs(self, machine: Machine) -> str:
        """The plan for `machine`, and how many layouts take how many steps."""
        return f"{self.top} {self.steps}\n{self.plan(machine)}"

    def plan(self, machine: Machine) -> str:
        """The text of the plan on all devices of `machine`, with its free places."""
        return plan_text(self.name, self.model, self.batch, self.sentences, machine)

    def _found(self, machine: Machine, folder: Path) -> list[tuple[Path, str, float]]:
        """The first layouts: path of the plan, free values, seconds of a step."""
        space = folder / f"{self.name}.plan"
        space.write_text(self.plan(machine))
        found = []
        for number, candidate in enumerate(search(space, top=self.top, target="cuda"), start=1):
            path = folder / f"{self.name}_{number}.plan"
            path.write_text(candidate.text.replace(f"plan {self.name}", f"plan {self.name}_{number}", 1))
            found.append((path, candidate.label, candidate.time_s))
        return found

    def predict(self, machine: Machine, folder: Path) -> Facts:
        """The first layouts for `machine` with their seconds, fastest first; their plans are written to `folder`."""
        return {
            "layouts": [
                {"layout": label, "step_s": seconds, "plan_sha256": sha256(path.read_bytes()).hexdigest()}
                for path, label, seconds in self._found(machine, folder)
            ]
        }

    def measure(self, machine: Machine, folder: Path, timeout_s: float) -> Facts:
        """Seconds of each layout on `machine`, the rank correlation with the predicted ones, and what the first one
        loses to the fastest, in at most `timeout_s` seconds.

        The plans are written to `folder`. Raises MeasuringError when a rank fails.
        """
        found = self._found(machine, folder)
        plans = [path for path, _, _ in found]
        took = measure("cuda", machine.devices, plans=plans, steps=self.steps, timeout_s=timeout_s)
        seconds = [took.step_s(path.stem) for path in plans]
        return {
            "layouts": [{"layout": label, "step_s": s} for (_, label, _), s in zip(found, seconds, strict=True)],
            "rank_correlation": rank_correlation([s for _, _, s in found], seconds),
            "first_loses": seconds[0] / min(seconds) - 1,
        }


def rank_correlation(predicted: Sequence[float], measured: Sequence[float]) -> float | None:
    """Spearman's rank correlation of the same layouts' `predicted` and `measured` seconds; equal ones share their
    ranks. None where one side has one value alone.

    >>> rank_correlation([1, 2, 3], [10, 30, 20])
    0.5
    """

    def ranks(values: Sequence[float]) -> list[float]:
        return [sum(other < v for other in values) + (sum(other == v for other in values) - 1) / 2 for v in values]

    a, b = ranks(predicted), ranks(measured)
    mean = (len(a) - 1) / 2
    spread_a, spread_b = (sum((rank - mean) ** 2 for rank in side) for side in (a, b))
    if not spread_a or not spread_b:
        return None
    together: float = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    return together / float((spread_a * spread_b) ** 0.5)
