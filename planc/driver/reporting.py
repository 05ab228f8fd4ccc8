"""The report: facts about the plan, its cost, and the refusals of each target."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from planc.diag.diagnostic import Diagnostic, Related
from planc.diag.fast_dataclass import dataclass
from planc.frameworks import stack_of
from planc.ir.plan import Plan
from planc.ir.report import Report, RunCost, TargetAnswer, TimedCollective
from planc.ir.target import Target
from planc.language.build import Built
from planc.language.defaults import decisive
from planc.picture.units import count, days, money
from planc.version import __version__

if TYPE_CHECKING:
    from planc.costing import CostedPlan
    from planc.ir.sharding import Sharded

MOST_PLACES = 20
"""Findings that an `expect no CODE` shows."""


@dataclass(frozen=True)
class Answer:
    """The cost of a plan for its target (None if it cannot be costed), and the diagnostics of refusing targets."""

    costed: CostedPlan | None = None
    target: Target | None = None
    targets: tuple[TargetAnswer, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    sharded: Sharded | None = None


def with_broken_expectations(plan: Plan | None, found: list[Diagnostic]) -> list[Diagnostic]:
    """Return the diagnostics `found`, and an E0802 for each of them that `plan` rules out by `expect no CODE`."""
    unwanted = {e.code for e in plan.expects_no} if plan else set()
    places: dict[str, list[Related]] = {}
    for d in found:
        if d.code in unwanted and len(places.setdefault(d.code, [])) < MOST_PLACES:
            places[d.code].append(Related(d.span, d.message))
    broken = [
        Diagnostic(
            "E0802",
            f"{expect.code} is there, and the plan expects that it is not",
            expect.cause.span,
            related=tuple(places[expect.code]),
        )
        for expect in (plan.expects_no if plan else ())
        if expect.code in places
    ]
    return found + broken


def report_of(built: Built, given: dict[str, int], answer: Answer, diagnostics: tuple[Diagnostic, ...]) -> Report:
    plan = built.plan
    facts: dict[str, Any] = {} if plan is None else _plan_facts(plan)
    costs: dict[str, Any] = {} if answer.costed is None else _cost_facts(answer.costed)
    return Report(
        planc_version=__version__,
        plan=plan.name if plan else None,
        plan_sha256=plan.sha256 if plan else None,
        source_sha256=next(iter(plan.sources.values()), None) if plan else None,
        set=given,
        target=answer.target,
        targets=answer.targets,
        framework=plan.framework if plan and not stack_of(plan).own and answer.target is None else None,
        diagnostics=diagnostics,
        **facts,
        **costs,
    )


def _plan_facts(plan: Plan) -> dict[str, Any]:
    whole = plan.batch.sequences % (plan.data_parallel * plan.batch.microbatch_sequences) == 0
    return {
        "tokens_per_step": plan.batch.tokens,
        "global_batch": plan.batch.sequences,
        "microbatches": plan.microbatches if whole else None,
        "devices": plan.mesh.devices,
        "mesh": plan.mesh.sizes,
        "defaults": decisive(plan),
    }


def _cost_facts(costed: CostedPlan) -> dict[str, Any]:
    from planc.calibration.intervals import held_gib, uncertainty

    names = ("model", "cluster", "axes", "limits", "memory", "step", "collectives", "goodput", "run")
    plan, facts = costed.sharded.plan, {name: getattr(costed, name) for name in names}
    facts["uncertainty"] = uncertainty(plan, costed.step, costed.memory)
    facts["memory"] = replace(costed.memory, reserved_gib=held_gib(plan, costed.memory))
    return facts


def run_lines(run: RunCost | None) -> list[str]:
    """Return the days, device hours and price of a `run` as one line; [] if the plan has neither length nor price."""
    if run is None:
        return []
    rate = ""
    if run.price_per_hour is not None and run.currency:
        rate = f"{money(run.price_per_hour, run.currency)} an hour"
    if run.days is None or run.device_hours is None or run.tokens is None:
        return [f"price {rate}; `train for N tokens` gives that of the run"]
    paid = f"; {money(run.price, run.currency)} at {rate}" if run.price is not None and run.currency else ""
    return [
        f"run of {count(run.tokens)} tokens in {run.steps:,} steps: {days(run.days)} and"
        f" {count(run.device_hours)} device hours with its goodput{paid}"
    ]


Key = tuple[str, str, str, str, str]


def grouped(rows: Iterable[TimedCollective]) -> dict[Key, list[TimedCollective]]:
    """Return `rows` in groups with equal axis, network level, operation, content and phase, for all tensors."""
    groups: dict[Key, list[TimedCollective]] = {}
    for r in rows:
        key = (r.row.axis, r.level, r.row.op, r.row.carries, r.row.phase)
        groups.setdefault(key, []).append(r)
    return groups
