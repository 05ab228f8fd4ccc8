"""Writes a plan as the file of another system, and reads the file back. The export is refused if the plan that is read
back means something else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from planc.diag.diagnostic import Diagnostic, has_errors
from planc.diag.errors import PlanError
from planc.diag.fast_dataclass import dataclass
from planc.diag.span import Source, Span
from planc.frameworks import OWN
from planc.frameworks.runs import lacks
from planc.interop.document import Document, FieldValue, Given
from planc.interop.effective import differing, effective
from planc.interop.importing import imported
from planc.interop.plan_setup import setup_of
from planc.interop.plan_text import plan_text
from planc.interop.setup import CannotSayError, TrainingSetup
from planc.interop.system import OMIT, System
from planc.interop.systems import systems
from planc.interop.values import Options
from planc.ir.base import Cause, sentence_of
from planc.ir.plan import Plan
from planc.language.framework_rules import settled


@dataclass(frozen=True)
class Exported:
    """An exported file of another system: its text, the fields it sets, and the training configuration (`setup`)."""

    system: System
    setup: TrainingSetup
    fields: Mapping[str, FieldValue]
    text: str
    diagnostics: tuple[Diagnostic, ...] = ()
    """Warnings about sentences that the file expresses only approximately."""
    beside: Mapping[str, str] = field(default_factory=dict)
    """Arguments that the system takes from another place than this file, by name."""


def export_plan(plan: Plan, to: str) -> Exported:
    """Returns the file of the system `to` that means the same as `plan`, apart from the `expect` sentences.

    Raises PlanError with E1309 for each sentence that the system, or planc's writer for it, cannot express, and
    KeyError for a system that planc does not write.
    """
    system = systems()[to]
    if system.text is None:
        raise KeyError(to)
    plan = settled(plan)
    if found := [
        Diagnostic("E1309", f"{system.title} {lack.why}", lack.cause.span) for lack in lacks(plan, system.name)
    ]:
        raise PlanError(found)
    try:
        setup = setup_of(plan)
    except CannotSayError as error:
        raise PlanError([_refusal(plan, system, error.verb, str(error))]) from None
    folder = Path(plan.file).parent
    own = built_of(setup, folder)
    if lost := differing(plan, own) if own else ("mesh",):
        raise PlanError([_refusal(plan, system, verb, "no other system has a field for it") for verb in lost])
    try:
        fields = {name: value for name, write in system.writes.items() if (value := write(setup)) is not OMIT}
    except CannotSayError as error:
        raise PlanError([_refusal(plan, system, error.verb, str(error))]) from None
    beside = {name: str(value) for name, write in system.beside.items() if (value := write(setup)) is not OMIT}
    text = system.text(fields, setup)
    again = _reread(system, fields, beside, setup)
    if isinstance(again, tuple):
        raise PlanError([_refusal(plan, system, "mesh", d.message) for d in again])
    back = built_of(replace(again, cluster=setup.cluster, framework=setup.framework), folder)
    lost = differing(plan, back) if back else ("mesh",)
    notes = []
    if setup.framework not in (OWN, again.framework):
        notes.append(_approximation(plan, system, "realise", f"its runs have the rules of {system.title}"))
    if back is not None and "recompute" in lost and _differ_at_ends(plan, back):
        lost = tuple(verb for verb in lost if verb != "recompute")
        if plan.recompute.ops != back.recompute.ops:
            why = "its recomputation stops elsewhere at a block's end"
            notes.append(_approximation(plan, system, "recompute", why))
    if lost:
        reasons = {verb: system.cannot.get(verb, f"{system.title} has no field for it") for verb in lost}
        raise PlanError([_refusal(plan, system, verb, why) for verb, why in reasons.items()])
    return Exported(system, setup, fields, text, tuple(notes), beside)


def _differ_at_ends(plan: Plan, back: Plan) -> bool:
    """True if both plans recompute the same blocks and differ at most in the last matmul of a block: one plan stops the
    recomputation when the backward has what it needs, the other plan recomputes blocks to their end."""
    one, other = (effective(p)["recompute"][1:] for p in (plan, back))
    return plan.recompute.blocks and back.recompute.blocks and one == other


def _reread(
    system: System, fields: Mapping[str, Any], beside: Mapping[str, str], setup: TrainingSetup
) -> TrainingSetup | tuple[Diagnostic, ...]:
    """Returns the setup that the system's own reader finds in a file with these `fields`, or the reader's errors."""
    place = Span(f"{setup.name}{system.ending}", 1, 1, 1, 1)
    given = {name: Given(value, place) for name, value in fields.items()}
    document = Document(place.file, system.formats[0], given, Source.of(place.file, ""))
    options = Options(cluster=setup.cluster, devices=setup.devices, model=setup.model, given=dict(beside))
    found = imported(system, (document,), options, setup.name)
    if found.setup is None:
        return tuple(d for d in found.diagnostics if d.severity == "error")
    return found.setup


def built_of(setup: TrainingSetup, folder: Path) -> Plan | None:
    """Returns the plan of `setup` as if it stood in `folder`; None if it has errors."""
    from planc.language.build import build_file

    path = (folder / "exported.plan").resolve()
    built = build_file(path, unsaved={path: plan_text(setup)})
    return None if has_errors(list(built.diagnostics)) else built.plan


def _refusal(plan: Plan, system: System, verb: str, why: str) -> Diagnostic:
    cause = _cause(plan, verb)
    shown = f"`{sentence_of(cause)}`" if cause is not plan.mesh.cause or verb == "mesh" else f"a plan without `{verb}`"
    return Diagnostic("E1309", f"{system.title} cannot say {shown}: {why}", cause.span)


def _approximation(plan: Plan, system: System, verb: str, why: str) -> Diagnostic:
    cause = _cause(plan, verb)
    return Diagnostic("W1310", f"{system.title} says `{sentence_of(cause)}` only nearly: {why}", cause.span)


def _cause(plan: Plan, verb: str) -> Cause:
    """Returns the first sentence of the plan with the verb `verb`, or else the mesh sentence."""
    groups: dict[str, tuple[Any, ...]] = {
        "model": (plan.model,),
        "batch": (plan.batch,),
        "cluster": (plan.cluster,),
        "shard": plan.shards,
        "store": plan.stores,
        "gather": (plan.gather,),
        "split": (plan.split,),
        "route": (plan.route,),
        "attention.core": (plan.attention,),
        "optimizer": (plan.optimizer,),
        "freeze": (plan.freeze,),
        "lora": (plan.lora,),
        "compute": (plan.precision,),
        "recompute": (plan.recompute,),
        "quantize": plan.quantize,
        "offload": plan.offloads,
        "overlap": plan.overlaps,
        "compile": plan.compiles,
        "loss": (plan.chunked_loss,),
        "realise": (plan.realise,),
        "override": plan.overrides,
    }
    causes = (node.cause for node in groups.get(verb, ()) if node is not None)
    return next((cause for cause in causes if cause is not None), plan.mesh.cause)
