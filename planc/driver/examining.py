"""The examination of one plan: it is read, checked, costed for its target, and reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from planc.checks import judge_plan, plan_findings
from planc.diag.diagnostic import Diagnostic, bounded, in_order
from planc.diag.fast_dataclass import dataclass
from planc.diag.span import Source
from planc.driver.places import user_path, with_user_paths
from planc.driver.policy import with_policy
from planc.driver.reporting import Answer, report_of, with_broken_expectations
from planc.driver.request import Request, check_arguments, checked_or_found
from planc.frameworks import policy_of, stack_of
from planc.ir.backend import refusals
from planc.ir.checked import CheckedPlan
from planc.ir.plan import Plan
from planc.ir.report import Refusal, Report, TargetAnswer
from planc.ir.target import NO_TARGET, TARGETS, AnyTarget, Target
from planc.language.build import Built
from planc.lowering import backend_of, load_backend
from planc.sharding.propagate import propagate

if TYPE_CHECKING:
    from planc.costing import CostedPlan
    from planc.ir.sharding import Sharded


@dataclass(frozen=True)
class Examined:
    """The result of `examine` for one file: its report, the plan and its cost, and the texts that diagnostics quote."""

    report: Report
    plan: Plan | None
    sources: dict[str, Source] = field(default_factory=dict)
    built: Built | None = None
    """Result of reading; its places name files by their path from the plan's folder."""
    costed: CostedPlan | None = None
    explicit: bool = False
    """True if the caller or a sentence names the target; a plan that its cluster's target refuses is then wrong."""
    sharded: Sharded | None = None
    """The propagated plan, if the plan rules find no error."""


def examine(
    source: str | Path | Plan,
    *,
    set: dict[str, int] | None = None,
    target: AnyTarget | None = None,
    unsaved: Mapping[Path, str] | None = None,
    targets: tuple[Target, ...] = TARGETS,
) -> Examined:
    """Check and cost a plan like `check`, and return the report together with the texts of the files that were read.

    `unsaved` holds texts by resolved path, which replace those on disk. `targets` are the targets whose refusals are
    reported, in addition to those of the plan's own target.
    """
    given = set or {}
    check_arguments(given, target)
    path = None if isinstance(source, Plan) else Path(source)
    request = Request(source, given, target, unsaved or {})
    built, answer = with_policy(request.built, path), Answer()
    checked, found = checked_or_found(built.plan)
    if checked is not None:
        answer = _cost(checked, request, targets)
        if answer.target is None and request.target in built.on and not request.explicit:
            # Read again, without the sentences for it.
            return examine(source, set=set, target=NO_TARGET, unsaved=unsaved, targets=targets)
    more = answer.diagnostics
    if built.plan is None and built.mended is not None:
        more = tuple(_further_mistakes(built, built.mended, request))
    found = with_broken_expectations(built.plan, [*built.diagnostics, *found, *more])
    diagnostics = bounded(in_order([with_user_paths(d, path, built) for d in found]))
    shown = {user_path(name, path): Source(user_path(name, path), s.text, s.lines) for name, s in built.sources.items()}
    report = report_of(built, given, answer, diagnostics)
    return Examined(report, built.plan, shown, built, answer.costed, request.explicit, answer.sharded)


def unread(diagnostics: tuple[Diagnostic, ...], sources: dict[str, Source]) -> Examined:
    """Return the result for files that give no plan: the `diagnostics`, and the texts that they quote, by file name."""
    return Examined(report_of(Built(None, (), {}), {}, Answer(), diagnostics), None, sources)


def _cost(checked: CheckedPlan, request: Request, reported: tuple[Target, ...] = TARGETS) -> Answer:
    """Cost the plan for its target. If the target is only that of the cluster and it refuses the plan, cost it without
    a target, as any correct program. `reported` are the targets whose refusals are reported."""
    from planc.costing import cost_plan

    sharded = own = propagate(checked.for_planc)
    refused = {t: request.refusals(t, own) for t in TARGETS if t in reported or t == request.target}
    targets = tuple(_target_answer(target, found) for target, found in refused.items())
    target = None if request.target == NO_TARGET else request.target
    stack = stack_of(checked.plan)
    found = [own_program_note(checked.plan, target)] if target is not None and not stack.own else []
    if target is not None and refused[target]:
        if request.explicit:
            return Answer(None, target, targets, (*found, *refused[target]), sharded)
        target = None
    if target is not None:
        found += load_backend(target).notes(own)
    if target is None and not stack.own:
        sharded = propagate(checked)
    costed = cost_plan(sharded, backend=backend_of(target))
    return Answer(costed, target, targets, (*found, *judge_plan(costed)), own)


def own_program_note(plan: Plan, target: Target) -> Diagnostic:
    """Return N0905: `plan` says `realise as`, which the program for `target` (planc's own) does not follow."""
    assert plan.realise is not None
    title = policy_of(plan.framework).title
    return Diagnostic(
        "N0905",
        f"the program for {target} is planc's own: `realise as {plan.framework}` decides nothing here",
        plan.realise.cause.span,
        help=f"--target none costs the plan as {title} realises it; `planc export` writes its configuration",
    )


def _target_answer(target: Target, refused: list[Diagnostic]) -> TargetAnswer:
    found = tuple(Refusal(code=d.code, line=d.span.line, message=d.message) for d in in_order(refused))
    return TargetAnswer(target=target, lowers=not found, refusals=found)


def _further_mistakes(built: Built, mended: Plan, request: Request) -> list[Diagnostic]:
    """Return the rules' findings about a plan that could not be read, `mended` by guesses, except on the lines guessed.

    `mended` is not costed, because its seconds and GiB would be guesses. If the model's name was a guess, rules about
    the model are not run.
    """
    unknown = {(d.span.file, d.span.line) for d in built.diagnostics if d.code == "E0108"}
    guessed = {s.verb for s in built.sentences if (s.span.file, s.span.line) in unknown} & {"model"}
    waiting = built.left_out | guessed
    checked, found = (None, plan_findings(mended, waiting)) if waiting else checked_or_found(mended)
    if checked is not None and request.explicit and request.target != NO_TARGET:
        found += refusals(propagate(checked.for_planc), load_backend(request.target))
    mistaken = {(d.span.file, d.span.line) for d in built.diagnostics if d.severity == "error"}
    return [d for d in found if (d.span.file, d.span.line) not in mistaken]
