"""80 % prediction intervals of step time and memory, from planc's errors on published runs of similar plans.

Runs are grouped in classes: by chip, by dense or mixture of experts, by framework. A plan uses the narrowest class that
has enough runs. If no run of that class is on the plan's chip or with its framework, it uses all runs, each framework
weighted the same. `make docs` writes the classes to `data/intervals.json` (`tests.lab.published.residuals`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from math import inf
from typing import Any, Literal

from planc.calibration.bundled import bundled
from planc.calibration.parameters import family_of
from planc.costing.memory.peak import outside_gib
from planc.diag.fast_dataclass import dataclass
from planc.ir.hardware import Chip
from planc.ir.plan import Plan
from planc.ir.report import Interval, Memory, Reserved, Step, Uncertainty

Quantity = Literal["step", "memory"]
SHARE = 0.8
"""Coverage of an interval: the share of runs that should lie in it."""
NO_NUMBERS = "chips without measured numbers"
STRANGERS = "every framework weighted the same"
"""The class of plans on a chip, or with a framework, that the narrower classes have no run of."""


@dataclass(frozen=True)
class Subject:
    """The properties of a plan that select its class of published runs: chip, `dense` or `experts`, framework."""

    chip: str
    kind: str
    framework: str

    def classes(self, quantity: Quantity) -> Iterator[str]:
        """Yield the names of the classes for `quantity` that contain such a plan, from the narrowest to `STRANGERS`."""
        if quantity == "step":
            family = family_of(self.chip)
            yield f"{self.kind}, {self.chip}, {self.framework}"
            yield f"{self.kind}, {self.chip}"
            yield f"{self.kind}, {family}" if family else self.kind
            yield f"{self.kind}, {'TPUs' if family == 'TPUs' else 'GPUs'}" if family else self.kind
        else:
            yield f"{self.kind}, {self.framework}"
        yield self.kind
        yield STRANGERS


@dataclass(frozen=True)
class Ratios:
    """A class of published runs. For `SHARE` (80 %) of them, measured over predicted value is in `low` to `high`."""

    of: str
    runs: int
    low: float
    high: float
    chips: tuple[str, ...]
    frameworks: tuple[str, ...]

    def around(self, value: float, plan: Plan, lowest: float = inf) -> Interval:
        """Return the prediction interval of `value`, predicted for `plan`, in the unit of `value`. It is widened where
        needed to contain `value`, and down to `lowest` if that is smaller."""
        return Interval(
            low=min(value, value * self.low, lowest),
            estimate=value,
            high=max(value, value * self.high),
            runs=self.runs,
            of=self.of,
            none_of=tuple(self.lacks(subject_of(plan))),
        )

    def lacks(self, subject: Subject) -> Iterator[str]:
        """Yield the chip and the framework of `subject` that no run of the class uses."""
        yield from (subject.chip,) if subject.chip not in self.chips else ()
        yield from (subject.framework,) if subject.framework not in self.frameworks else ()


def subject_of(plan: Plan) -> Subject:
    """Return the properties of `plan` that select its class of published runs."""
    return Subject(plan.cluster.chip.name, "experts" if "experts" in plan.model.sizes else "dense", plan.framework)


def uncertainty(plan: Plan, step: Step, memory: Memory) -> Uncertainty:
    """Return the prediction intervals of the step time in `step` and of the peak allocated `memory`, both of `plan`."""
    return Uncertainty(
        share=SHARE,
        step_s=step_ratios(plan).around(step.time_s, plan),
        allocated_gib=allocated_gib(plan, memory),
    )


def allocated_gib(plan: Plan, memory: Memory) -> Interval:
    """Return the prediction interval (GiB) of the peak allocated on a device of `plan`, predicted in `memory`."""
    least = memory.reserved_gib.low - outside_gib(plan, memory.per_device_gib)
    return ratios(subject_of(plan), "memory").around(memory.allocated_gib, plan, least)


def held_gib(plan: Plan, memory: Memory) -> Reserved:
    """Return the range (GiB) of memory that the fullest device of `plan` reserves: the prediction interval of allocated
    memory plus memory outside the allocator. The upper end is at least `memory.reserved_gib.high`."""
    allocated, outside = allocated_gib(plan, memory), outside_gib(plan, memory.per_device_gib)
    return Reserved(low=allocated.low + outside, high=max(memory.reserved_gib.high, allocated.high + outside))


def step_ratios(plan: Plan) -> Ratios:
    """Return the class of published runs for the step of `plan`; `NO_NUMBERS` if its chip was never measured."""
    if without_numbers(plan.cluster.chip):
        return _classes("step")[NO_NUMBERS]
    return ratios(subject_of(plan), "step")


def ratios(subject: Subject, quantity: Quantity) -> Ratios:
    """Return the class of published runs for the `quantity` of a plan like `subject`."""
    found = narrowest(subject, quantity, _classes(quantity).get)
    assert found
    return found


def narrowest(subject: Subject, quantity: Quantity, class_called: Callable[[str], Ratios | None]) -> Ratios | None:
    """Return the narrowest class for `subject` that has enough runs (`class_called` returns None for the others);
    `STRANGERS` if it lacks the subject's chip or framework. None if there is no run at all."""
    found = next((c for name in subject.classes(quantity) if (c := class_called(name))), None)
    return class_called(STRANGERS) if found and any(found.lacks(subject)) else found


def without_numbers(chip: Chip) -> bool:
    """True if no published run used `chip` and its hardware file has no overhead of a step, an op or a kernel by sizes,
    which only a fit to runs or microbenchmarks finds; an efficiency may be from a data sheet."""
    return not family_of(chip.name) and not (chip.step_s or chip.dispatch_s or chip.tables)


def order_margin() -> float:
    """Return by what fraction two predicted steps must differ for their order to be reliable.

    With a larger difference, the layout predicted to be slower was also measured slower in a share `SHARE` of pairs of
    published runs of one model on one machine.
    """
    return float(bundled_intervals()["order_margin"])


@cache
def bundled_intervals() -> dict[str, Any]:
    """Return the content of `data/intervals.json`: classes of published runs by quantity, and `order_margin`."""
    facts: dict[str, Any] = bundled("intervals.json")
    return facts


@cache
def _classes(quantity: Quantity) -> dict[str, Ratios]:
    rows = bundled_intervals()[quantity]
    return {
        row["of"]: Ratios(**{**row, "chips": (*row["chips"],), "frameworks": (*row["frameworks"],)}) for row in rows
    }
