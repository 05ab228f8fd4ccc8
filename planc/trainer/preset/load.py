"""Load a preset: a TOML file with a compiled plan and all other settings of a run.

A run trains the compiled plan in the preset. The source of the plan is read only to detect that it has changed since
`planc embed`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from planc.diag import Diagnostic, PlanError, Span
from planc.diag.quoting import shell_word
from planc.files import parse_toml, read_bounded
from planc.ir.field_types import shortened
from planc.ir.plan import Plan
from planc.language.build import build_file
from planc.language.framework_rules import settled
from planc.syntax.suggest import nearest
from planc.trainer.preset.compiled import Compiled, checksum, first_line, plan_of
from planc.trainer.preset.outputs import misplaced, without_folder
from planc.trainer.preset.settings import Checkpoint, DataTable, PlanPart, PresetTables, TrainTable
from planc.trainer.preset.toml_spans import Place, diagnose, places, span_of

COMPILED = "compiled"
"""The key of the compiled text's checksum in `[plan] sha256`; the other keys are files."""
MAX_BYTES = 16_000_000
"""Largest preset, and largest source of one, that is read."""


@dataclass(frozen=True)
class Preset:
    """A valid preset: its plan, its TOML tables (`parts`), and diagnostics that are not errors (`notes`)."""

    path: Path
    plan: Plan
    parts: PresetTables
    notes: tuple[Diagnostic, ...] = ()

    @property
    def train(self) -> TrainTable:
        return self.parts.train

    @property
    def data(self) -> DataTable:
        return self.parts.data

    @property
    def checkpoint(self) -> Checkpoint:
        return self.parts.checkpoint

    @property
    def checkpoints(self) -> Path | None:
        """The folder of the run's checkpoints; None if none are saved."""
        folder = self.checkpoint.folder
        return (self.path.parent / folder).absolute() if folder else None

    def at(self, *place: str) -> Span:
        """Return the span of the key `place` (table and name); if it is missing, that of its table, else of the file's
        start."""
        return span_of(place, places(str(self.path), read_text(self.path)), str(self.path))

    def saving_in(self, folder: Path | str | None) -> Preset:
        """Return the preset with its checkpoints in `folder`; unchanged for None."""
        if folder is None:
            return self
        checkpoint = self.checkpoint.model_copy(update={"folder": str(Path(folder).absolute())})
        return replace(self, parts=self.parts.model_copy(update={"checkpoint": checkpoint}))


def load_preset(path: Path | str, checkpoints: Path | str | None = None) -> Preset:
    """Return the preset at `path`, after all checks. Raises PlanError with every error found.

    `checkpoints` is a folder for checkpoints that replaces the preset's.
    """
    path = Path(path)
    text = read_text(path)
    parts = _read_parts(path, text)
    spans = places(str(path), text)

    def at(*place: str) -> Span:
        return span_of(place, spans, str(path))

    findings = [] if checkpoints else [*_missing_folder(parts.checkpoint, at("checkpoint", "every_steps"))]
    plan = _compiled(parts.plan, path, at("plan", COMPILED), text)
    if isinstance(plan, Diagnostic):
        raise PlanError([*findings, plan])
    described = _check_source(parts.plan, at("plan", "source"))
    findings += described or _freshness(parts.plan, plan, path, at("plan", "source"))
    findings += misplaced(without_folder(parts) if checkpoints else parts, path, text)
    findings += _unfit_patterns(parts, plan, path, spans)
    findings += _unbalanced(parts, plan, path, spans)
    findings += _other_optimizer(parts, plan, path, spans)
    errors = [f for f in findings if f.severity == "error"]
    if errors:
        raise PlanError(errors)
    return Preset(path, plan, parts, tuple(findings)).saving_in(checkpoints)


def read_text(path: Path) -> str:
    """Return the text of the preset at `path`. Raises PlanError (E1001) if it cannot be read."""
    try:
        return read_bounded(path, MAX_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise PlanError([Diagnostic("E1001", f"{path} cannot be read: {reason}", _file_start(path))]) from None


def read_toml(path: Path, text: str) -> dict[str, Any]:
    """Return the parsed TOML `text` of the preset at `path`. Raises PlanError (E1001) that points at a syntax error."""
    try:
        return parse_toml(text, finite=False)  # the settings say which numbers may be
    except ValueError as error:
        found = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        line, column = (int(found[1]), int(found[2])) if found else (text.count("\n") + 1, 1)
        span = Span(str(path), line, column, line, column + 1)
        reason = str(error).partition(" (at ")[0]
        raise PlanError([Diagnostic("E1001", f"{path.name} is not TOML: {reason}", span)]) from None


def embed_command(part: PlanPart, path: Path) -> str:
    """Return the command that updates the compiled plan in the preset at `path`; `part` is its `[plan]` table."""
    source = shell_word(str(path.parent / part.source)) if part.source else "PLAN"
    given = "".join(f" --set {shell_word(f'{name}={value}')}" for name, value in part.set.items())
    return f"planc embed {source} {shell_word(str(path))}{given}"


def _read_parts(path: Path, text: str) -> PresetTables:
    values = read_toml(path, text)
    try:
        return PresetTables.model_validate(values)
    except ValidationError as error:
        raise PlanError(diagnose(error.errors(), PresetTables, str(path), text)) from None


def _missing_folder(checkpoint: Checkpoint, span: Span) -> list[Diagnostic]:
    """Return an error if checkpoints are to be saved but no folder is given."""
    if checkpoint.every_steps == 0 or checkpoint.folder:
        return []
    message = f"saving every {checkpoint.every_steps} steps, and [checkpoint] names no folder"
    return [Diagnostic("E1015", message, span, help='write `folder = "runs/NAME"`, or give --checkpoint DIR')]


def _compiled(part: PlanPart, path: Path, span: Span, text: str) -> Plan | Diagnostic:
    """Return the embedded plan, or its error. `text` is the content of the preset, `span` that of the plan's key."""
    help_text = embed_command(part, path)
    if not part.compiled:
        return Diagnostic("E1004", "the preset holds no compiled plan", span, help=help_text)
    if part.compiled.lstrip().startswith("{"):
        return Diagnostic("E1006", "the compiled plan is in JSON, as an older planc wrote it", span, help=help_text)
    made, expected = Compiled(part.compiled, part.files), part.sha256.get(COMPILED)
    if expected != checksum(made, part.set):
        what = "has no sum beside it" if expected is None else "is not what was embedded: its sum differs"
        return Diagnostic("E1006", f"the compiled plan {what}", span, help=help_text)
    built = made.read(path.name, first_line(span, text))
    found = plan_of(built, {name: part.sha256[name] for name in _files(part)}, part.set)
    if isinstance(found, Plan):
        return found
    message = f"the compiled plan is none that this version of planc reads: {found.message}"
    return Diagnostic("E1006", message, replace(found.span, file=str(path)), help=help_text)


def _check_source(part: PlanPart, source: Span) -> list[Diagnostic]:
    """Return an error if the file named as `source` is not one from which the plan was compiled."""
    if not part.source or part.source in part.sha256:
        return []
    message = f"[plan] source: `{part.source}` is not among the files that the compiled plan was made of"
    return [Diagnostic("E1003", message, source, help=f"files: {', '.join(_files(part)) or 'none'}")]


def _unfit_patterns(parts: PresetTables, plan: Plan, path: Path, spans: dict[Place, Span]) -> list[Diagnostic]:
    """Return an error for each pattern of [train] decay_groups that matches no parameter and so has no effect."""
    known = [p.name for p in plan.model.params]
    return [
        Diagnostic(
            "E1003",
            f"[train] decay_groups: `{glob}` fits no parameter of {plan.model.name}",
            span_of(("train", "decay_groups", glob), spans, str(path)),
            help=f"near it: {', '.join(nearest(glob, known, most=3) or known[:3])}",
        )
        for glob in parts.train.decay_groups
        if not any(fnmatchcase(name, glob) for name in known)
    ]


def _unbalanced(parts: PresetTables, plan: Plan, path: Path, spans: dict[Place, Span]) -> list[Diagnostic]:
    """Return an error if the preset sets a load-balancing loss for a model without experts."""
    if not parts.train.balance_loss or plan.model.top_k:
        return []
    where = span_of(("train", "balance_loss"), spans, str(path))
    return [Diagnostic("E1003", f"[train] balance_loss: {plan.model.name} has no experts", where, help="leave it out")]


def _other_optimizer(parts: PresetTables, plan: Plan, path: Path, spans: dict[Place, Span]) -> list[Diagnostic]:
    """Return an error if the preset's optimizer is not the plan's, for which memory and time were predicted."""
    name, sentence = parts.train.optimizer, plan.optimizer.cause
    if sentence is None or name == plan.optimizer.name:
        return []
    where = span_of(("train", "optimizer"), spans, str(path))
    message = f"[train] optimizer is {name}, and the plan says `{' '.join(sentence.sentence.split())}`"
    legal = f'`optimizer = "{plan.optimizer.name}"` here, or `optimizer {name}` in {parts.plan.source or "the plan"}'
    return [Diagnostic("E1034", message, where, help=legal)]


def _files(part: PlanPart) -> list[str]:
    return [name for name in part.sha256 if name != COMPILED]


def _freshness(part: PlanPart, plan: Plan, path: Path, span: Span) -> list[Diagnostic]:
    """Return an error for each source file that has changed since `planc embed`, and a note for each missing one. If
    all files are there and unchanged, the plan is recompiled and compared."""
    found = []
    for name, expected in part.sha256.items():
        if name == COMPILED:
            continue
        try:
            if not _is_looked_at(name, part, path.parent):
                raise FileNotFoundError
            actual = hashlib.sha256(read_bounded(path.parent / name, MAX_BYTES)).hexdigest()
        except OSError:
            message = f"{shortened(name)} is not here: the compiled plan is used as it stands"
            found.append(Diagnostic("N1008", message, span))
            continue
        if actual != expected:
            message = f"{name} has changed since it was embedded ({expected[:8]}, now {actual[:8]})"
            found.append(Diagnostic("E1005", message, span, help=embed_command(part, path)))
    return found or _recompiled(part, plan, path, span)


def _is_looked_at(name: str, part: PlanPart, folder: Path) -> bool:
    """True if the preset may have the checksum of the file `name` verified: for the source plan, and for files in the
    folder of that plan or of the preset.

    `planc embed` writes no other files. If checksums of any file were verified, a preset could probe the content of
    private files.
    """
    source, place = (folder / part.source).resolve(), (folder / name).resolve()
    is_plan = source.suffix == ".plan" and source.is_file()
    near = (folder.resolve(), *([source.parent] if is_plan else []))
    return (is_plan and name == part.source) or any(place.is_relative_to(root) for root in near)


def _recompiled(part: PlanPart, plan: Plan, path: Path, span: Span) -> list[Diagnostic]:
    """Return E1006 if the source now compiles to another plan than the one in the preset, or not at all."""
    if part.source not in part.sha256:
        return []
    built = build_file(path.parent / part.source, dict(part.set)).plan
    again = built and settled(built)
    if again is not None and again.sha256 == plan.sha256:
        return []
    what = "does not compile with this version of planc"
    if again is not None:
        what = f"compiles to another plan ({again.sha256[:12]}) than the one in the preset ({plan.sha256[:12]})"
    return [Diagnostic("E1006", f"{part.source} {what}", span, help=embed_command(part, path))]


def _file_start(path: Path) -> Span:
    return Span(str(path), 1, 1, 1, 1)
