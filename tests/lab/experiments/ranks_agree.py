"""A plan over several ranks beside one process: losses, gradients, and the collectives that were predicted."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from planc.diag.fast_dataclass import dataclass
from planc.driver import load, lower
from planc.trainer.receipt.crosscheck import BUDGETS
from tests.lab.experiments.experiment import Facts, Machine, plan_text
from tests.lab.measure import rows_of_ranks

GRADIENT_BUDGETS = {"fp32": 1e-3, "bf16": 1e-1}
"""The largest difference of a gradient's element, as a share of the gradient's largest element, by compute dtype.
fp32: layouts part by 1e-5 on the CPU, and a device's kernels add in another order. bf16: 8 bits a number, and sums of
some thousand of them."""


@dataclass(frozen=True, kw_only=True)
class RanksAgree:
    """`steps` steps of the same layout in each of several precisions, over `ranks` ranks and as one process."""

    name: str
    title: str
    model: str
    batch: str
    sentences: tuple[str, ...]
    precisions: tuple[tuple[str, ...], ...]
    """More sentences of each plan."""
    ranks: int
    shared: bool
    """All ranks are on the first device and talk over gloo; else each has its own."""
    steps: int = 3
    minimum_s: float = 60.0

    def inputs(self, machine: Machine) -> str:
        """The plans for `machine`, where they run and for how many steps."""
        return "\n".join((f"{self.ranks} {self.shared} {self.steps}", *self.plans(machine).values()))

    def plans(self, machine: Machine) -> dict[str, str]:
        """The texts of the plans by name, on `ranks` devices like those of `machine`."""
        several = replace(machine, devices=self.ranks)
        names = {f"{self.name}_{number}": more for number, more in enumerate(self.precisions, start=1)}
        return {
            name: plan_text(name, self.model, self.batch, (*self.sentences, *more), several)
            for name, more in names.items()
        }

    def _written(self, machine: Machine, folder: Path) -> dict[str, Path]:
        paths = {}
        for name, text in self.plans(machine).items():
            paths[name] = folder / f"{name}.plan"
            paths[name].write_text(text)
        return paths

    def predict(self, machine: Machine, folder: Path) -> Facts:
        """The budgets of each plan (losses in nats, gradients as shares), and its program; the plans for `machine` are
        written to `folder`."""
        rows = []
        for name, path in self._written(machine, folder).items():
            dtype = load(path).precision.compute
            digest = sha256(lower(path, "cuda").text.encode()).hexdigest()
            budgets = {"budget": BUDGETS[dtype], "gradient_budget": GRADIENT_BUDGETS[dtype]}
            rows.append({"plan": name, "dtype": dtype, "program_sha256": digest, **budgets})
        return {"plans": rows}

    def measure(self, machine: Machine, folder: Path, timeout_s: float) -> Facts:
        """The differences of each plan, and the collectives that were not predicted, in at most `timeout_s` seconds on
        `machine`.

        The plans are written to `folder`. Raises MeasuringError when a rank fails.
        """
        paths = self._written(machine, folder)
        task = {"plans": [str(path) for path in paths.values()], "steps": self.steps, "shared": self.shared}
        rows = rows_of_ranks("parity_worker", (), task, self.ranks, timeout_s)
        plans = []
        for row in rows:
            dtype = load(paths[row["plan"]]).precision.compute
            apart = max(abs(a - b) for a, b in zip(row["losses"], row["reference"], strict=True))
            near = apart <= BUDGETS[dtype] and row["gradient"] <= GRADIENT_BUDGETS[dtype]
            plans.append({**row, "dtype": dtype, "loss_apart": apart, "ok": near and not row["calls_otherwise"]})
        return {"plans": plans, "agree": all(plan["ok"] for plan in plans)}
