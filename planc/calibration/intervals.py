"""80 % intervals of predictions, from how far published runs of the same class were off.

A plan's class is its chip, dense or with experts, and its framework; with too few published runs of that class, a
wider one. `data/intervals.json` has the classes, written by `make docs` (`tests.lab.published.residuals`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import inf
from typing import Any, Literal

from planc.calibration.bundled import bundled
from planc.calibration.parameters import family_of
from planc.costing.memory.peak import outside_gib
from planc.diag.fast_dataclass import dataclass
from planc.frameworks import OWN
from planc.ir.hardware import Chip
from planc.ir.plan import Plan
from planc.ir.report import Interval, Memory, Reserved, Step, Uncertainty

Quantity = Literal["step", "memory"]
SHARE = 0.8
"""Share of runs that an interval is to hold."""
NO_NUMBERS = "chips without measured numbers"


@dataclass(frozen=True)
class Subject:
    """The facts of a plan that the class of its predictions follows from."""

    chip: str
    kind: str
    framework: str

    def classes(self, quantity: Quantity) -> Iterator[str]:
        """Names of the classes of `quantity` that the subject belongs to, the narrowest first."""
        if quantity == "step":
            family = family_of(self.chip)
            yield f"{self.kind}, {self.chip}, {self.framework}"
            yield f"{self.kind}, {self.chip}"
            yield f"{self.kind}, {family}" if family else self.kind
            yield f"{self.kind}, {'TPUs' if family == 'TPUs' else 'GPUs'}" if family else self.kind
        else:
            yield f"{self.kind}, {self.framework}"
        yield self.kind
        yield "all"


@dataclass(frozen=True)
class Ratios:
    """A class of published runs, the measured over the predicted value between which `SHARE` of them lie, and the chips
    and frameworks that they are of."""

    of: str
    runs: int
    low: float
    high: float
    chips: tuple[str, ...]
    frameworks: tuple[str, ...]

    def around(self, value: float, plan: Plan, lowest: float = inf) -> Interval:
        """The interval of a `value` predicted for `plan`, in its unit; it holds the value, and `lowest` where that is
        below it."""
        chip, frameworks = plan.cluster.chip.name, (OWN, *self.frameworks)
        unlike = [chip] * (chip not in self.chips) + [plan.framework] * (plan.framework not in frameworks)
        return Interval(
            low=min(value, value * self.low, lowest),
            estimate=value,
            high=max(value, value * self.high),
            runs=self.runs,
            of=self.of,
            none_of=tuple(unlike),
        )


def subject_of(plan: Plan) -> Subject:
    """The facts of `plan` that its class follows from."""
    return Subject(plan.cluster.chip.name, "experts" if "experts" in plan.model.sizes else "dense", plan.framework)


def uncertainty(plan: Plan, step: Step, memory: Memory) -> Uncertainty:
    """The intervals of the predicted `step` of `plan`, and of the peak that is allocated in `memory`."""
    return Uncertainty(
        share=SHARE,
        step_s=step_ratios(plan).around(step.time_s, plan),
        allocated_gib=allocated_gib(plan, memory),
    )


def allocated_gib(plan: Plan, memory: Memory) -> Interval:
    """The interval of the peak that is allocated in `memory` of `plan`."""
    least = memory.reserved_gib.low - outside_gib(plan, memory.per_device_gib)
    return ratios(subject_of(plan), "memory").around(memory.allocated_gib, plan, least)


def held_gib(plan: Plan, memory: Memory) -> Reserved:
    """Memory that the fullest device holds, in GiB: at both ends at least what is allocated in `memory` of
    `plan`."""
    allocated, outside = allocated_gib(plan, memory), outside_gib(plan, memory.per_device_gib)
    return Reserved(low=allocated.low + outside, high=max(memory.reserved_gib.high, allocated.high + outside))


def step_ratios(plan: Plan) -> Ratios:
    """The class of the step of `plan`: `NO_NUMBERS` where its chip has the efficiency that the language supposes."""
    if without_numbers(plan.cluster.chip):
        return _classes("step")[NO_NUMBERS]
    return ratios(subject_of(plan), "step")


def ratios(subject: Subject, quantity: Quantity) -> Ratios:
    """The narrowest class of a `subject` and `quantity` that has enough published runs."""
    found = _classes(quantity)
    return next(found[name] for name in subject.classes(quantity) if name in found)


def without_numbers(chip: Chip) -> bool:
    """True for a `chip` that no published run is of, and whose efficiency of matmuls is the language's default."""
    from planc.language.verbs.hardware import CHIP

    return not family_of(chip.name) and chip.matmul_efficiency == CHIP["matmul_efficiency"][1]


def order_margin() -> float:
    """The ratio of the predicted steps of two layouts of one model on one machine, less one, from which on the slower
    one was the slower one when measured, in `SHARE` of pairs of published runs."""
    return float(bundled_intervals()["order_margin"])


@cache
def bundled_intervals() -> dict[str, Any]:
    """`data/intervals.json`."""
    facts: dict[str, Any] = bundled("intervals.json")
    return facts


@cache
def _classes(quantity: Quantity) -> dict[str, Ratios]:
    rows = bundled_intervals()[quantity]
    return {
        row["of"]: Ratios(**{**row, "chips": (*row["chips"],), "frameworks": (*row["frameworks"],)}) for row in rows
    }
