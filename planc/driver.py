"""The list of steps, and the library's front door: load, check, cost, lower, search."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planc.checks import check_plan, judge_plan, plan_findings
from planc.diag.diagnostic import Diagnostic, Edit, Fix, Related, bounded, in_order
from planc.diag.errors import PlanError
from planc.diag.fast_dataclass import dataclass
from planc.diag.span import Source, Span
from planc.files import read_json
from planc.frameworks import policy_of, stack_of
from planc.ir.backend import refusals
from planc.ir.base import plain_name
from planc.ir.checked import CheckedPlan
from planc.ir.installed import framework_needed
from planc.ir.plan import Plan
from planc.ir.program import Program
from planc.ir.report import Refusal, Report, TargetAnswer
from planc.ir.saved_model import SavedModel, saved_path
from planc.ir.stack import target_of_cluster
from planc.ir.target import NO_TARGET, TARGETS, AnyTarget, Target
from planc.ir.version import Version, dotted, version_of
from planc.language.build import Built, build_file
from planc.language.defaults import decisive
from planc.language.verbs.model_from import MAX_BYTES, ORIGINS
from planc.lowering import RUNTIMES, backend_of, load_backend, lower_plan, lower_sharded
from planc.sharding.propagate import propagate
from planc.version import __version__

if TYPE_CHECKING:
    from planc.costing import CostedPlan
    from planc.ir.sharding import Sharded
    from planc.searching import Found


NOWHERE = Span("", 1, 1, 1, 1)
MOST_PLACES = 20
"""Findings that an `expect no CODE` shows."""


@dataclass(frozen=True)
class Examined:
    """Everything that `examine` finds about one file: its report, and the texts that its diagnostics quote."""

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


def load(source: str | Path, *, set: dict[str, int] | None = None, target: str = "") -> Plan:
    """Read a plan file, and check it.

    Args:
        source: path of the file.
        set: values of its `let` numbers, whole numbers by name.
        target: the target whose `on TARGET:` sentences are read; none of them if it is empty.

    Raises:
        PlanError: the plan has errors; every diagnostic is in it.
        ValueError: a number of `set` or the target is not one.

    >>> plan = load("plans/tiny.plan")
    >>> plan.name, plan.mesh.sizes, plan.batch.tokens  # 8 sequences of 128 tokens
    ('tiny', {'fsdp': 2, 'tp': 2}, 1024)
    """
    _check_arguments(set or {}, target or None)
    path = Path(source)
    built = build_file(path, set, target)
    checked, found = _check(built.plan)
    if checked is None:
        raise PlanError(bounded(in_order([_with_user_paths(d, path, built) for d in (*built.diagnostics, *found)])))
    return checked.plan


def target_of(source: str | Path, *, set: dict[str, int] | None = None) -> Target:
    """The target of a plan file: that of its `target` sentence, else its cluster's. Raises PlanError.

    `source` is the path, `set` the values of `let` numbers. A plan with `target none` has a program too: its cluster's.
    """
    plan, built = load(source, set=set), build_file(Path(source), set)
    return built.target if built.target in TARGETS else target_of_cluster(plan.cluster)


def check(source: str | Path | Plan, *, set: dict[str, int] | None = None, target: AnyTarget | None = None) -> Report:
    """Check and cost a plan. The user's mistakes are in the report's diagnostics, never raised.

    Args:
        source: path of a plan file, or a loaded plan.
        set: values of its `let` numbers, whole numbers by name.
        target: the program that is costed: "cuda", "xla", or "none" for what any correct program must keep and send.
            None is the plan's own: its `target` sentence, else its cluster's (TPUs: xla; all others: cuda) unless that
            target refuses the plan. `Report.target` says which one it was, `Report.targets` what each of them refuses.

    Raises:
        ValueError: a number of `set` or the target is not one.

    >>> report = check("plans/tiny.plan")
    >>> report.devices, report.tokens_per_step, [d.code for d in report.diagnostics]
    (4, 1024, [])
    """
    return examine(source, set=set, target=target).report


def cost(source: str | Path | Plan, *, set: dict[str, int] | None = None, target: AnyTarget | None = None) -> Report:
    """The report of a plan that must be right, for a target.

    An expectation that does not hold, or memory that does not suffice, is part of the answer. `source`, `set` and
    `target` are those of `check`; seconds of the step, GiB of memory and each collective are in the report.

    Raises:
        PlanError: the plan has errors of its own.
        ValueError: a number of `set` or the target is not one.

    >>> report = cost("plans/llama3_70b_v5p.plan")
    >>> f"{report.tokens_per_step / report.devices:.0f} tokens a device, {report.memory.capacity_gib:.0f} GiB"
    '8192 tokens a device, 95 GiB'
    """
    report = check(source, set=set, target=target)
    if report.step is None:
        raise PlanError(report.diagnostics)
    return report


def model_of(module: Any, example_inputs: Any = None, *, name: str = "") -> SavedModel:
    """The op graph of a torch module, read from one run of its code on the meta device.

    Args:
        module: the module, on any device; its weights are not looked at.
        example_inputs: what it is called with, the tokens [sequences, tokens] first; None: tokens alone.
        name: the model's name in reports; its class's if it is empty.

    Returns:
        The op graph, to be kept beside a plan: `model_of(module).write("mine.model.json")`, which is read by
        `model from code "mine"`.

    Raises:
        PlanError: the module has no op graph (E1207 to E1210), or torch is not installed (E1009).

    >>> from planc.backends.cuda.models.llama import build
    >>> module = build(load("plans/tiny.plan").model)
    >>> model_of(module).model.parameters == sum(p.numel() for p in module.parameters())
    True
    """
    with framework_needed("cuda", NOWHERE):
        return load_backend("cuda").model_of(module, example_inputs, name)


def save_models(source: str | Path, *, set: dict[str, int] | None = None, target: str = "") -> list[Path]:
    """Run the code that the `model from` sentence of a plan names, and keep what it does beside the plan.

    Args:
        source: path of the plan.
        set: values of its `let` numbers.
        target: the target whose `on TARGET:` sentences are read.

    Returns:
        The files written; [] for a plan whose model is of the catalog.

    Raises:
        PlanError: there is no op graph for this code, or what it needs is missing.
    """
    path, written = Path(source), []
    for named, of, span in _own_models(path, set, target):
        try:
            with framework_needed("cuda", span):
                load_backend("cuda").model_of(of, None, plain_name(Path(named).stem)).write(
                    path.parent / saved_path(named)
                )
        except PlanError as error:
            raise PlanError([replace(d, span=span) for d in error.diagnostics]) from None
        written.append(path.parent / saved_path(named))
    return written


def module_source(
    source: str | Path, *, set: dict[str, int] | None = None, target: str = ""
) -> dict[str, Any] | str | None:
    """The source of the module of a plan with `model from transformers` or `model from code`; no code runs here.

    Args:
        source: path of the plan.
        set: values of its `let` numbers.
        target: the target whose `on TARGET:` sentences are read.

    Returns:
        The config's fields, or `package.module:function`; None for a plan whose model is of the catalog.
    """
    return next((of for _, of, _ in _own_models(Path(source), set, target)), None)


def _own_models(
    path: Path, set: dict[str, int] | None, target: str
) -> Iterator[tuple[str, dict[str, Any] | str, Span]]:
    """The sentences that read a model from code: the name in each, what builds the module, and its place. Those that
    are wrong are left out: they are reported when the plan is read."""
    for sentence in build_file(path, set, target).sentences:
        names = sentence.node.words("NAME") if sentence.verb == "model_from" else []
        if not names or names[0].text not in ORIGINS:
            continue
        named = sentence.node.words("STRING")[0].text.strip('"')
        if not (path.parent / saved_path(named)).resolve().is_relative_to(path.parent.resolve()):
            continue
        try:
            of = read_json(path.parent / named, MAX_BYTES) if names[0].text == "transformers" else named
        except (OSError, ValueError):
            continue
        yield named, of, sentence.span


def lower(
    plan: str | Path | Plan,
    target: Target = "cuda",
    *,
    set: dict[str, int] | None = None,
    runtime: str = "",
    version: str = "",
) -> Program:
    """Write the program of a plan for a target, and for one of its runtimes.

    Args:
        plan: path of a plan file, or a loaded plan.
        target: "cuda" or "xla".
        set: values of its `let` numbers, whole numbers by name.
        runtime: one of the target's runtimes: "torch" for cuda; "jax" or "torch_xla" for xla. The first if it is empty.
        version: the version of that runtime which the program is written for, like "2.11"; planc's own if it is empty.

    Raises:
        PlanError: the plan has errors, or the target refuses it.
        ValueError: there is no such target or runtime, or no programs are written for that version.

    >>> program = lower("plans/tiny.plan", "xla")
    >>> "jax" in program.text
    True
    """
    wanted = known_version(target, runtime, version)
    if isinstance(plan, Plan):
        return lower_plan(check_plan(plan), target, runtime, wanted)
    path = Path(plan)
    built = build_file(path, set, target)
    try:
        if built.plan is None:
            raise PlanError(built.diagnostics)
        program = lower_plan(check_plan(built.plan), target, runtime, wanted)
        rules = path.with_suffix(".rules")
        return replace(program, rules=rules) if rules.is_file() else program
    except PlanError as error:
        raise PlanError(bounded(in_order([_with_user_paths(d, path, built) for d in error.diagnostics]))) from None


def lower_and_examine(
    path: str | Path, target: Target, *, set: dict[str, int] | None = None, runtime: str = "", version: str = ""
) -> tuple[Program, Examined]:
    """`lower`, and what `examine` finds of the same plan for `target`, from one reading of `path`.

    `path` is a plan file, `set` the values of its `let` numbers; `target`, `runtime` and `version` are those of
    `lower`. Raises PlanError when the plan or target refuses, and ValueError where there is no such target, runtime or
    version.
    """
    wanted = known_version(target, runtime, version)
    examined = examine(path, set=set, target=target, targets=())
    if examined.sharded is None or examined.built is None:
        return lower(path, target, set=set, runtime=runtime, version=version), examined
    try:
        return lower_sharded(examined.sharded, target, runtime, wanted), examined
    except PlanError as error:
        found = [_with_user_paths(d, Path(path), examined.built) for d in error.diagnostics]
        raise PlanError(bounded(in_order(found))) from None


def known_version(target: Target, runtime: str, version: str) -> Version | None:
    """The `version` that a program for a `target` and its `runtime` is asked for; None for planc's own.

    Raises ValueError for what is not known.
    """
    _known_runtime(target, runtime)
    if not version:
        return None
    versions = load_backend(target, runtime).versions
    if (wanted := version_of(version)) not in versions:
        known = ", ".join(map(dotted, versions))
        raise ValueError(f"no programs are written for {runtime or RUNTIMES[target][0]} {version!r}, only for {known}")
    return wanted


def _known_runtime(target: Target, runtime: str) -> None:
    if target not in TARGETS:
        raise ValueError(f"target {target!r} is not one of {', '.join(TARGETS)}")
    if runtime and runtime not in RUNTIMES[target]:
        raise ValueError(f"runtime {runtime!r} is not one of {', '.join(RUNTIMES[target])}")


def search(
    source: str | Path,
    *,
    set: dict[str, int] | None = None,
    top: int = 10,
    most_sequences: int | None = None,
    memory_gib: float | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    target: AnyTarget | None = None,
    seconds: float | None = None,
    interrupted: Callable[[], bool] | None = None,
    on_space: Callable[[int], None] | None = None,
    unsaved: Mapping[Path, str] | None = None,
) -> Found:
    """The `top` fastest layouts that fill in what a plan leaves free with `?` and that fit: a sequence of Candidates.

    Layouts are costed and ranked for a target as in `check`. Those that it refuses are left out; where the cluster's
    target refuses all of them, they are costed for none. `Found.target` is the one that counted.

    Args:
        source: path of the plan file.
        set: values of its `let` numbers, whole numbers by name.
        top: number of layouts.
        most_sequences: the largest batch, for a plan that leaves its batch free.
        memory_gib: memory of a device (GiB) that replaces the chip's.
        on_progress: called with the numbers of layouts costed and of open nodes.
        target: "cuda", "xla" or "none"; None: the plan's own.
        seconds: the search ends after so long with the best layouts so far; `Found.cut_short` says so.
        interrupted: asked now and then: True ends the search in the same way.
        on_space: called once, before the search, with an upper bound on the number of layouts.
        unsaved: texts that count instead of what is on disk, by resolved path.

    Raises:
        PlanError: the plan has mistakes that no choice mends, or the target that the caller or a sentence names refuses
            all layouts.
        ValueError: a number of `set` is not one, or there is no such target.

    >>> len(search("plans/tiny.plan"))  # nothing is free: the plan itself
    1
    """
    _check_arguments(set or {}, target)
    from planc.searching.branch_and_bound import search as best_first
    from planc.searching.result import Ends
    from planc.searching.space import Space

    deadline_s = time.monotonic() + (float("inf") if seconds is None else seconds)

    def ends() -> Ends:
        if interrupted is not None and interrupted():
            return "interrupt"
        return "time" if time.monotonic() > deadline_s else ""

    space_on = partial(Space, Path(source), set, most_sequences, unsaved=unsaved)
    best_of = partial(best_first, top=top, memory_gib=memory_gib, on_progress=on_progress, ends=ends)
    plain = space_on()
    if on_space is not None:
        on_space(plain.most_layouts)
    named = target or plain.target
    chosen = named or stack_of(plain.plan).target
    if chosen == NO_TARGET:
        return best_of(plain)
    on = chosen if chosen in plain.on_targets else ""
    try:
        return best_of(space_on(on, own=True) if on or plain.plan.realise else plain, backend=backend_of(chosen))
    except PlanError:
        if named is not None:
            raise
    return best_of(plain)


def examine(
    source: str | Path | Plan,
    *,
    set: dict[str, int] | None = None,
    target: AnyTarget | None = None,
    unsaved: Mapping[Path, str] | None = None,
    targets: tuple[Target, ...] = TARGETS,
) -> Examined:
    """`check`, with the texts of the files read beside the report.

    `unsaved` holds texts that count instead of what is on disk, by resolved path. `targets` are those whose refusals
    are reported beside the plan's own target's.
    """
    given = set or {}
    _check_arguments(given, target)
    path = None if isinstance(source, Plan) else Path(source)
    request = _Request(source, given, target, unsaved or {})
    built, answer = request.built, Answer()
    checked, found = _check(built.plan)
    if checked is not None:
        answer = _cost(checked, request, targets)
        if answer.target is None and request.target in built.on and not request.explicit:
            # Read again, without the sentences for it.
            return examine(source, set=set, target=NO_TARGET, unsaved=unsaved, targets=targets)
    more = answer.diagnostics
    if built.plan is None and built.mended is not None:
        more = tuple(_further_mistakes(built, built.mended, request))
    found = _with_broken_expectations(built.plan, [*built.diagnostics, *found, *more])
    diagnostics = bounded(in_order([_with_user_paths(d, path, built) for d in found]))
    shown = {user_path(name, path): Source(user_path(name, path), s.text, s.lines) for name, s in built.sources.items()}
    report = _report(built, given, answer, diagnostics)
    return Examined(report, built.plan, shown, built, answer.costed, request.explicit, answer.sharded)


def unread(diagnostics: tuple[Diagnostic, ...], sources: dict[str, Source]) -> Examined:
    """The result of files that make no plan: `diagnostics` alone, with the texts that they quote by file name."""
    return Examined(_report(Built(None, (), {}), {}, Answer(), diagnostics), None, sources)


def _check_arguments(given: dict[str, int], target: str | None) -> None:
    """The caller's mistakes, not the plan's: raised at once."""
    if target is not None and target not in (*TARGETS, NO_TARGET):
        raise ValueError(f"target {target!r} is not one of {', '.join((*TARGETS, NO_TARGET))}")
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10**12:
            raise ValueError(f"set[{name!r}] = {value!r} is not a whole number up to 10**12")


def _check(plan: Plan | None) -> tuple[CheckedPlan | None, list[Diagnostic]]:
    """The checked plan unless a plan rule finds an error, and everything that the rules find."""
    if plan is None:
        return None, []
    try:
        checked = check_plan(plan)
    except PlanError as error:
        return None, list(error.diagnostics)
    return checked, list(checked.diagnostics)


class _Request:
    """A plan as it was requested: the result of reading it, and the target that it is costed for."""

    def __init__(
        self, source: str | Path | Plan, given: dict[str, int], target: AnyTarget | None, unsaved: Mapping[Path, str]
    ) -> None:
        self._source, self._given, self._unsaved = source, given, unsaved
        self.built = self.built_for(target or NO_TARGET)
        explicit = target or self.built.target
        self.explicit = explicit is not None
        plan = self.built.plan or self.built.mended
        self.target: AnyTarget = explicit or (stack_of(plan).target if plan else NO_TARGET)
        if self.target in self.built.on and target is None:
            self.built = self.built_for(self.target)

    def built_for(self, target: AnyTarget) -> Built:
        """The plan with the sentences that are written after `on TARGET:`, if there are any."""
        if isinstance(self._source, Plan):
            return Built(self._source, (), {})
        on = "" if target == NO_TARGET else target
        return build_file(Path(self._source), self._given, on, self._unsaved)

    def refusals(self, target: Target, sharded: Sharded) -> list[Diagnostic]:
        """Refusals of a target for the plan with that target's sentences; `sharded` has those of `self.target`."""
        if not {target, self.target} & self.built.on or target == self.target:
            return refusals(sharded, load_backend(target))
        other = self.built_for(target)
        checked, found = _check(other.plan)
        if checked is None:
            return [d for d in in_order([*other.diagnostics, *found]) if d.severity == "error"]
        return refusals(propagate(checked.for_planc), load_backend(target))


@dataclass(frozen=True)
class Answer:
    """The cost of a plan for the target that was requested, if it can be costed, and what each target refuses."""

    costed: CostedPlan | None = None
    target: Target | None = None
    targets: tuple[TargetAnswer, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    sharded: Sharded | None = None


def _cost(checked: CheckedPlan, request: _Request, reported: tuple[Target, ...] = TARGETS) -> Answer:
    """The cost as the target's program; as any correct program where the target is only the cluster's and refuses."""
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
    """N0905 for a plan with `realise as` another framework that is costed or lowered for a `target`."""
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


def _further_mistakes(built: Built, mended: Plan, request: _Request) -> list[Diagnostic]:
    """Mistakes that are no consequence of those found while reading: of the plan with these mended, elsewhere.

    It is not costed: its seconds and GiB would be those of a guess. Rules about the model wait where its name is one.
    """
    unknown = {(d.span.file, d.span.line) for d in built.diagnostics if d.code == "E0108"}
    guessed = {s.verb for s in built.sentences if (s.span.file, s.span.line) in unknown} & {"model"}
    waiting = built.left_out | guessed
    checked, found = (None, plan_findings(mended, waiting)) if waiting else _check(mended)
    if checked is not None and request.explicit and request.target != NO_TARGET:
        found += refusals(propagate(checked.for_planc), load_backend(request.target))
    mistaken = {(d.span.file, d.span.line) for d in built.diagnostics if d.severity == "error"}
    return [d for d in found if (d.span.file, d.span.line) not in mistaken]


def _with_broken_expectations(plan: Plan | None, found: list[Diagnostic]) -> list[Diagnostic]:
    """E0802 for every diagnostic that `expect no CODE` wants absent."""
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


def _report(built: Built, given: dict[str, int], answer: Answer, diagnostics: tuple[Diagnostic, ...]) -> Report:
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


# Places: inside, a file is named by its path from the plan's folder; outside, as the user named it.


def user_path(name: str, path: Path | None) -> str:
    """The file `name`, as spans and a plan's sources have it, from where the user stands; `path` is the plan's file."""
    if path is None or name.startswith(("plans/hardware/", "plans/layouts/")):
        return name
    return str(path) if name == path.name else str(path.parent / name)


def _with_user_paths(d: Diagnostic, path: Path | None, built: Built) -> Diagnostic:
    def with_user_path(span: Span) -> Span:
        known = span.file in built.sources or (path is not None and span.file == path.name)
        return replace(span, file=user_path(span.file, path)) if known else span

    fix = d.fix and Fix(d.fix.title, tuple(Edit(with_user_path(e.span), e.text) for e in d.fix.edits), d.fix.safe)
    related = tuple(Related(with_user_path(r.span), r.message) for r in d.related)
    return replace(d, span=with_user_path(d.span), related=related, fix=fix)
