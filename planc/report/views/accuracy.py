"""The accuracy view: the errors of predictions for published runs."""

from __future__ import annotations

from functools import cache

from planc.calibration.bundled import bundled
from planc.calibration.intervals import uncertainty
from planc.picture.units import gib, percent, seconds
from planc.report.data import Data, PageSubject

CHIPS = {
    "a100": "A100-80",
    "b200": "B200",
    "b300": "B300",
    "gb200": "GB200 NVL72",
    "gb300": "GB300 NVL72",
    "h100": "H100 SXM",
    "h200": "H200 SXM",
    "v4": "TPU v4",
    "v5e": "TPU v5e",
    "v5p": "TPU v5p",
    "v6e": "TPU v6e",
    "tpu7x": "TPU 7x",
}
"""Maps the chip in a hardware file to its name in published runs."""


class Errors(Data):
    """Relative errors of step times, each run predicted without its publisher's runs (held out)."""

    group: str
    runs: int
    median: float
    p90: float
    bias: float


class Likely(Data):
    """An 80 % interval, in the unit of the prediction, and the class of published runs that it comes from."""

    low: float
    high: float
    runs: int
    of: str


class Accuracy(Data):
    """Accuracy view: the plan's 80 % intervals, the nearest class of published runs, and wider ones."""

    step: Likely
    memory: Likely

    classes: tuple[Errors, ...]
    memory_runs: int
    memory_median: float
    summary: str


@cache
def _errors() -> dict[str, Errors]:
    return {e["group"]: Errors(**e) for e in bundled("accuracy.json")["held_out"]}


def accuracy(subject: PageSubject) -> Accuracy:
    """Return the prediction errors for published runs like the plan of `subject`: same chip and kind of model (dense or
    MoE), then same kind, then all."""
    plan = subject.costed.sharded.plan
    kind = "experts" if "experts" in plan.model.sizes else "dense"
    chip = CHIPS.get(plan.cluster.chip.name, "")
    found = _errors()
    classes = tuple(found[name] for name in (f"{chip}, {kind}", kind, "all") if name in found)
    nearest = classes[0]
    memory = bundled("accuracy.json")["memory"]
    named = {"experts": "models with experts", "dense": "dense models"}.get(nearest.group, nearest.group)
    about = (
        named if chip and nearest.group.startswith(chip) else f"{named} on other chips, for none is known on this one"
    )
    costed = subject.costed
    likely = uncertainty(plan, costed.step, costed.memory)
    step, held = likely.step_s, likely.allocated_gib
    within = (
        f"In 80 % of runs of its class the step takes {seconds(step.low)} to {seconds(step.high)}, and"
        f" {gib(held.low)} to {gib(held.high)} GiB are allocated at the peak."
    )
    for what, found_in in (("step", step), ("peak", held)):
        if found_in.none_of:
            within += f" The {what}'s class has no run of {' or '.join(found_in.none_of)}."
    return Accuracy(
        step=Likely(low=step.low, high=step.high, runs=step.runs, of=step.of),
        memory=Likely(low=held.low, high=held.high, runs=held.runs, of=held.of),
        classes=classes,
        memory_runs=memory["runs"],
        memory_median=memory["median"],
        summary=f"{within} Published runs of this class: {about}, {nearest.runs} runs. Each was predicted without its"
        f" publisher's runs:"
        f" half of the step times within {percent(nearest.median)} of what was measured, nine in ten within"
        f" {percent(nearest.p90)}. Peak memory was published for {memory['runs']} runs: half within"
        f" {percent(memory['median'])}.",
    )
