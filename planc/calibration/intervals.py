"""Give 80 % prediction intervals, from the errors on published runs of the same class.

The class of a plan is its chip, dense or with experts, and its framework; a wider class if too few runs are published.
`make docs` writes the classes to `data/intervals.json` (`tests.lab.published.residuals`).
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
"""Coverage of an interval: the share of runs that should lie in it."""
NO_NUMBERS = "chips without measured numbers"


@dataclass(frozen=True)
class Subject:
    """The properties of a plan that decide which published runs are compared with it."""

    chip: str
    kind: str
    framework: str

    def classes(self, quantity: Quantity) -> Iterator[str]:
        """Yield the names of the subject's classes for `quantity`, the narrowest first."""
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
    """A class of published runs, with its chips and frameworks. For `SHARE` of the runs, measured over predicted value
    is between `low` and `high`."""

    of: str
    runs: int
    low: float
    high: float
    chips: tuple[str, ...]
    frameworks: tuple[str, ...]

    def around(self, value: float, plan: Plan, lowest: float = inf) -> Interval:
        """Return the interval of a `value` predicted for `plan`, in its unit; it contains the value, and `lowest` if
        that is smaller."""
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
    """Return the properties of `plan` that determine its class."""
    return Subject(plan.cluster.chip.name, "experts" if "experts" in plan.model.sizes else "dense", plan.framework)


def uncertainty(plan: Plan, step: Step, memory: Memory) -> Uncertainty:
    """Return the intervals of the predicted `step` of `plan`, and of the peak allocated `memory`."""
    return Uncertainty(
        share=SHARE,
        step_s=step_ratios(plan).around(step.time_s, plan),
        allocated_gib=allocated_gib(plan, memory),
    )


def allocated_gib(plan: Plan, memory: Memory) -> Interval:
    """Return the interval of the peak allocated `memory` of `plan`."""
    least = memory.reserved_gib.low - outside_gib(plan, memory.per_device_gib)
    return ratios(subject_of(plan), "memory").around(memory.allocated_gib, plan, least)


def held_gib(plan: Plan, memory: Memory) -> Reserved:
    """Return the range of reserved memory (GiB) of the fullest device: the interval of the allocated `memory` of
    `plan`, plus the memory outside tensors. The upper end is at least `memory.reserved_gib.high`."""
    allocated, outside = allocated_gib(plan, memory), outside_gib(plan, memory.per_device_gib)
    return Reserved(low=allocated.low + outside, high=max(memory.reserved_gib.high, allocated.high + outside))


def step_ratios(plan: Plan) -> Ratios:
    """Return the class of the step of `plan`: `NO_NUMBERS` if its chip has the language's default efficiency."""
    if without_numbers(plan.cluster.chip):
        return _classes("step")[NO_NUMBERS]
    return ratios(subject_of(plan), "step")


def ratios(subject: Subject, quantity: Quantity) -> Ratios:
    """Return the narrowest class of `subject` for `quantity` with enough published runs."""
    found = _classes(quantity)
    return next(found[name] for name in subject.classes(quantity) if name in found)


def without_numbers(chip: Chip) -> bool:
    """True if no published run used `chip` and its matmul efficiency is the language's default."""
    from planc.language.verbs.hardware import CHIP

    return not family_of(chip.name) and chip.matmul_efficiency == CHIP["matmul_efficiency"][1]


def order_margin() -> float:
    """Return the relative difference (a ratio minus one) of two predicted steps above which their order is reliable.

    Above it, the layout predicted slower was also measured slower in `SHARE` of pairs of published runs of one model on
    one machine.
    """
    return float(bundled_intervals()["order_margin"])


@cache
def bundled_intervals() -> dict[str, Any]:
    """Load `data/intervals.json`."""
    facts: dict[str, Any] = bundled("intervals.json")
    return facts


@cache
def _classes(quantity: Quantity) -> dict[str, Ratios]:
    rows = bundled_intervals()[quantity]
    return {
        row["of"]: Ratios(**{**row, "chips": (*row["chips"],), "frameworks": (*row["frameworks"],)}) for row in rows
    }
