"""The Python API: load, check, cost, lower and search a plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from planc.checks import check_plan
from planc.diag.errors import PlanError
from planc.driver.examining import Examined as Examined
from planc.driver.examining import examine as examine
from planc.driver.examining import own_program_note as own_program_note
from planc.driver.examining import unread as unread
from planc.driver.from_code import model_of as model_of
from planc.driver.from_code import module_source as module_source
from planc.driver.from_code import save_models as save_models
from planc.driver.places import user_error
from planc.driver.places import user_path as user_path
from planc.driver.request import check_arguments, checked_or_found
from planc.driver.request import known_version as known_version
from planc.frameworks import stack_of
from planc.ir.plan import Plan
from planc.ir.program import Program
from planc.ir.report import Report
from planc.ir.stack import target_of_cluster
from planc.ir.target import NO_TARGET, TARGETS, AnyTarget, Target
from planc.language.build import build_file
from planc.lowering import backend_of, lower_plan, lower_sharded

if TYPE_CHECKING:
    from planc.searching import Found


def load(source: str | Path, *, set: dict[str, int] | None = None, target: str = "") -> Plan:
    """Return the plan in a file, after checking it.

    Args:
        source: path of the file.
        set: values of the plan's `let` numbers (integers), by name.
        target: "cuda" or "xla" reads the plan's `on TARGET:` sentences for that target; "" reads none of them.

    Raises:
        PlanError: the plan has errors; the exception holds the diagnostics.
        ValueError: a value in `set` is no integer from 0 to 10**12, or there is no such target.

    >>> plan = load("plans/tiny.plan")
    >>> plan.name, plan.mesh.sizes, plan.batch.tokens  # 8 sequences of 128 tokens
    ('tiny', {'fsdp': 2, 'tp': 2}, 1024)
    """
    check_arguments(set or {}, target or None)
    path = Path(source)
    built = build_file(path, set, target)
    checked, found = checked_or_found(built.plan)
    if checked is None:
        raise user_error((*built.diagnostics, *found), path, built)
    return checked.plan


def target_of(source: str | Path, *, set: dict[str, int] | None = None) -> Target:
    """Return the target of a plan file: its `target` sentence's, else its cluster's. Raises PlanError if it has errors.

    `source` is the path, `set` the values of `let` numbers. A plan with `target none` also has its cluster's target.
    """
    plan, built = load(source, set=set), build_file(Path(source), set)
    return built.target if built.target in TARGETS else target_of_cluster(plan.cluster)


def check(source: str | Path | Plan, *, set: dict[str, int] | None = None, target: AnyTarget | None = None) -> Report:
    """Return the report of a plan, checked and costed. The plan's mistakes are diagnostics in it, never exceptions.

    Args:
        source: path of a plan file, or a loaded plan.
        set: values of the plan's `let` numbers (integers), by name.
        target: the program that is costed: "cuda" or "xla", or "none" for the memory and collectives that any correct
            program needs. None takes the plan's `target` sentence, else its cluster's target (TPUs: xla; all others:
            cuda) unless that target refuses the plan. The report has this target (`target`), and what each target
            refuses (`targets`).

    Raises:
        ValueError: a value in `set` is no integer from 0 to 10**12, or there is no such target.

    >>> report = check("plans/tiny.plan")
    >>> report.devices, report.tokens_per_step, [d.code for d in report.diagnostics]
    (4, 1024, [])
    """
    return examine(source, set=set, target=target).report


def cost(source: str | Path | Plan, *, set: dict[str, int] | None = None, target: AnyTarget | None = None) -> Report:
    """Return the report of a plan without errors: seconds of the step, GiB of memory and each collective, for a target.

    Unmet expectations and insufficient memory are diagnostics in the report, not exceptions. `source`, `set` and
    `target` are those of `check`.

    Raises:
        PlanError: the plan cannot be costed; the exception holds the diagnostics.
        ValueError: a value in `set` is no integer from 0 to 10**12, or there is no such target.

    >>> report = cost("plans/llama3_70b_v5p.plan")
    >>> f"{report.tokens_per_step / report.devices:.0f} tokens a device, {report.memory.capacity_gib:.0f} GiB"
    '8192 tokens a device, 95 GiB'
    """
    report = check(source, set=set, target=target)
    if report.step is None:
        raise PlanError(report.diagnostics)
    return report


def lower(
    plan: str | Path | Plan,
    target: Target = "cuda",
    *,
    set: dict[str, int] | None = None,
    runtime: str = "",
    version: str = "",
) -> Program:
    """Return the program of a plan for a target, and for one of its runtimes.

    Args:
        plan: path of a plan file, or a loaded plan.
        target: "cuda" or "xla".
        set: values of the plan's `let` numbers (integers), by name.
        runtime: "torch" for cuda; "jax" or "torch_xla" for xla; "" is the target's first runtime.
        version: the version of the runtime for which the program is written, like "2.11"; "" is planc's default.

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
        raise user_error(error.diagnostics, path, built) from None


def lower_and_examine(
    path: str | Path, target: Target, *, set: dict[str, int] | None = None, runtime: str = "", version: str = ""
) -> tuple[Program, Examined]:
    """Return the program of a plan (`lower`) and all that `examine` finds of it, reading the plan file `path` once.

    `set` holds the values of its `let` numbers; `target`, `runtime` and `version` are those of `lower`. Raises
    PlanError if the plan has errors or is refused, and ValueError if there is no such target, runtime or version.
    """
    wanted = known_version(target, runtime, version)
    examined = examine(path, set=set, target=target, targets=())
    if examined.sharded is None or examined.built is None:
        return lower(path, target, set=set, runtime=runtime, version=version), examined
    try:
        return lower_sharded(examined.sharded, target, runtime, wanted), examined
    except PlanError as error:
        raise user_error(error.diagnostics, Path(path), examined.built) from None


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
    leanest: bool = False,
) -> Found:
    """Return the `top` fastest layouts (Candidates) that fit in memory, for a plan with choices left open by `?`.

    Layouts are costed and ranked for a target as in `check`, and those that it refuses are left out. If the cluster's
    target refuses all of them, they are costed without a target. `Found.target` is the one that was used.

    Args:
        source: path of the plan file.
        set: values of the plan's `let` numbers (integers), by name.
        top: number of layouts.
        most_sequences: the largest batch, for a plan that leaves its batch open.
        memory_gib: memory of a device (GiB) that replaces the chip's.
        on_progress: called with the number of layouts costed so far and the number of open nodes of the search tree.
        target: "cuda", "xla" or "none"; None: the plan's own.
        seconds: time limit, after which the best layouts so far are returned; `Found.cut_short` says so.
        interrupted: called now and then; if it returns True, the search ends as at the time limit.
        on_space: called once, before the search, with an upper bound on the number of layouts.
        unsaved: texts that replace files on disk, by resolved path.
        leanest: only look for a layout that fits; it is the result's `nearest_miss`.

    Raises:
        PlanError: every choice leaves an error, or a target that the caller or a sentence names refuses all layouts.
        ValueError: a value in `set` is no integer from 0 to 10**12, or there is no such target.

    >>> len(search("plans/tiny.plan"))  # nothing is free: the plan itself
    1
    """
    check_arguments(set or {}, target)
    from planc.searching.branch_and_bound import search as best_first
    from planc.searching.result import Ends
    from planc.searching.space import Space

    deadline_s = time.monotonic() + (float("inf") if seconds is None else seconds)

    def ends() -> Ends:
        if interrupted is not None and interrupted():
            return "interrupt"
        return "time" if time.monotonic() > deadline_s else ""

    space_on = partial(Space, Path(source), set, most_sequences, unsaved=unsaved)
    best_of = partial(best_first, top=top, memory_gib=memory_gib, on_progress=on_progress, ends=ends, leanest=leanest)
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
