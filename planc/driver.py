"""The list of steps, and the library's front door: load, check, cost, lower."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planc import __version__
from planc.checks import check_plan, judge_plan
from planc.diag.diagnostic import Diagnostic, Edit, Fix, Related, bounded, has_errors, in_order
from planc.diag.errors import PlanError
from planc.diag.fast_dataclass import dataclass
from planc.diag.span import Source, Span
from planc.ir.plan import Plan
from planc.ir.program import Program, Target
from planc.ir.report import Report
from planc.language.build import Built, build_file
from planc.lowering import RUNTIMES, lower_plan, realise_plan
from planc.sharding import propagate

if TYPE_CHECKING:
    from planc.cost import Costed

TARGETS: tuple[Target, ...] = ("cuda", "xla")


@dataclass(frozen=True)
class Checked:
    """Everything that checking one file gave: for the report, and for quoting in diagnostics."""

    report: Report
    plan: Plan | None
    sources: dict[str, Source] = field(default_factory=dict)
    built: Built | None = None
    """What reading gave; its places name files by their path from the plan's folder."""
    costed: Costed | None = None


def load(source: str | Path, *, set: dict[str, int] | None = None, target: str = "") -> Plan:
    """Read a plan file. Raises PlanError with every diagnostic when it has errors."""
    _sound(set or {}, target or None)
    path = Path(source)
    built = build_file(path, set, target)
    found = list(built.diagnostics) + (check_plan(built.plan) if built.plan else [])
    if built.plan is None or has_errors(found):
        raise PlanError(bounded(in_order([_at(d, path, built) for d in found])))
    return built.plan


def check(source: str | Path | Plan, *, set: dict[str, int] | None = None, target: Target | None = None) -> Report:
    """Check and cost a plan. The user's mistakes are in the report's diagnostics, never raised."""
    return examine(source, set=set, target=target).report


def cost(source: str | Path | Plan, *, set: dict[str, int] | None = None, target: Target | None = None) -> Report:
    """The report of a plan that must be right. Raises PlanError when the plan has errors of its own.

    An expectation that does not hold, or memory that does not suffice, is part of the answer.
    """
    report = check(source, set=set, target=target)
    if report.step is None:
        raise PlanError(report.diagnostics)
    return report


def lower(
    plan: str | Path | Plan, target: Target = "cuda", *, set: dict[str, int] | None = None, runtime: str = ""
) -> Program:
    """Write the program of a plan for a target, and for one of its runtimes (the first unless said).

    Raises PlanError when the plan or target refuses.
    """
    if target not in TARGETS:
        raise ValueError(f"target {target!r} is not one of {', '.join(TARGETS)}")
    if runtime and runtime not in RUNTIMES[target]:
        raise ValueError(f"runtime {runtime!r} is not one of {', '.join(RUNTIMES[target])}")
    if isinstance(plan, Plan):
        return lower_plan(plan, target, runtime)
    path = Path(plan)
    built = build_file(path, set, target)
    try:
        if built.plan is None:
            raise PlanError(built.diagnostics)
        return lower_plan(built.plan, target, runtime)
    except PlanError as error:
        raise PlanError(bounded(in_order([_at(d, path, built) for d in error.diagnostics]))) from None


def examine(
    source: str | Path | Plan,
    *,
    set: dict[str, int] | None = None,
    target: Target | None = None,
    unsaved: Mapping[Path, str] | None = None,
) -> Checked:
    """`check`, with the texts of the files read beside the report.

    `unsaved` holds texts that count instead of what is on disk, by resolved path.
    """
    given = set or {}
    _sound(given, target)
    if isinstance(source, Plan):
        path, built = None, Built(source, (), {})
    else:
        path = Path(source)
        built = build_file(path, given, target or "", unsaved)
    found = list(built.diagnostics)
    costed = None
    if built.plan is not None:
        found += check_plan(built.plan)
        if not has_errors(found):
            costed, more = _cost(built.plan, target)
            found += more
    elif built.mended is not None:
        found += _behind(built, built.mended, target)
    found = _promised(built.plan, found)
    diagnostics = bounded(in_order([_at(d, path, built) for d in found]))
    shown = {_shown(name, path): Source(_shown(name, path), s.text, s.lines) for name, s in built.sources.items()}
    return Checked(_report(built, given, target, diagnostics, costed), built.plan, shown, built, costed)


def _sound(given: dict[str, int], target: str | None) -> None:
    """The caller's mistakes, not the plan's: raised at once."""
    if target is not None and target not in TARGETS:
        raise ValueError(f"target {target!r} is not one of {', '.join(TARGETS)}")
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10**12:
            raise ValueError(f"set[{name!r}] = {value!r} is not a whole number up to 10**12")


def _cost(plan: Plan, target: Target | None) -> tuple[Costed | None, list[Diagnostic]]:
    """The cost with semantic collectives, or with what a target makes of them."""
    from planc.cost import cost_plan

    if target is None:
        costed = cost_plan(propagate(plan))
    else:
        try:
            realised = realise_plan(plan, target)
        except PlanError as refused:
            return None, list(refused.diagnostics)
        costed = cost_plan(realised.sharded, realised.collectives)
    return costed, judge_plan(costed)


def _behind(built: Built, mended: Plan, target: Target | None) -> list[Diagnostic]:
    """Mistakes that are no consequence of those found while reading: of the plan with these mended, elsewhere."""
    found = check_plan(mended, built.left_out)
    if not built.left_out and not has_errors(found):
        found += _cost(mended, target)[1]
    mistaken = {(d.span.file, d.span.line) for d in built.diagnostics if d.severity == "error"}
    return [d for d in found if (d.span.file, d.span.line) not in mistaken]


def _promised(plan: Plan | None, found: list[Diagnostic]) -> list[Diagnostic]:
    """E0802 for every diagnostic that `expect no CODE` wants absent."""
    broken = [
        Diagnostic(
            "E0802",
            f"{expect.code} is there, and the plan expects that it is not",
            expect.cause.span,
            related=tuple(Related(d.span, d.message) for d in found if d.code == expect.code),
        )
        for expect in (plan.expects_no if plan else ())
        if any(d.code == expect.code for d in found)
    ]
    return found + broken


def _report(
    built: Built,
    given: dict[str, int],
    target: Target | None,
    diagnostics: tuple[Diagnostic, ...],
    costed: Costed | None,
) -> Report:
    plan = built.plan
    facts: dict[str, Any] = {} if plan is None else _plan_facts(plan)
    costs: dict[str, Any] = {} if costed is None else _cost_facts(costed)
    return Report(
        planc_version=__version__,
        plan=plan.name if plan else None,
        plan_sha256=plan.sha256 if plan else None,
        source_sha256=next(iter(plan.sources.values()), None) if plan else None,
        set=given,
        target=target,
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
    }


def _cost_facts(costed: Costed) -> dict[str, Any]:
    names = ("model", "cluster", "axes", "limits", "memory", "step", "collectives", "goodput")
    return {name: getattr(costed, name) for name in names}


# Places: inside, a file is named by its path from the plan's folder; outside, as the user named it.


def _shown(name: str, path: Path | None) -> str:
    if path is None or name.startswith(("plans/hardware/", "plans/layouts/")):
        return name
    return str(path) if name == path.name else str(path.parent / name)


def _at(d: Diagnostic, path: Path | None, built: Built) -> Diagnostic:
    def moved(span: Span) -> Span:
        known = span.file in built.sources or (path is not None and span.file == path.name)
        return replace(span, file=_shown(span.file, path)) if known else span

    fix = d.fix and Fix(d.fix.title, tuple(Edit(moved(e.span), e.text) for e in d.fix.edits))
    related = tuple(Related(moved(r.span), r.message) for r in d.related)
    return replace(d, span=moved(d.span), related=related, fix=fix)
