"""Patches the user's own launch script so that it says a plan: flag by flag, and all else stays byte for byte."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal

from planc.diag.diagnostic import Diagnostic, in_order
from planc.diag.errors import PlanError
from planc.diag.fast_dataclass import dataclass
from planc.diag.quoting import printable, shell_word
from planc.diag.span import Source, Span
from planc.files import read_bounded, read_text
from planc.interop.document import Document, FieldValue, Given
from planc.interop.effective import differing
from planc.interop.exporting import Exported, built_of
from planc.interop.formats.scan import ASSIGNMENT, Places, Scan
from planc.interop.importing import MAX_BYTES, Imported, import_files
from planc.interop.launcher import NODES, RANKS
from planc.interop.plan_setup import setup_of
from planc.interop.setup import CannotSayError, TrainingSetup
from planc.interop.system import OMIT
from planc.interop.values import Options
from planc.ir.plan import Plan

MAX_ROUNDS = 4
"""Maximum number of times that a script is read again, because what one flag says depends on another."""
_INNER = re.compile(r"""((?:--?[\w-]+=)?["']?)(.*?)["']?""", re.DOTALL)
_DEFAULT = re.compile(r"""\$\{\w+:?-["']?(.*?)["']?\}""", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_SPECIAL_IN_QUOTES = re.compile(r"[\s\"'$`\\]")

Where = Literal["set", "stands"]
"""Which place of a flag's value is changed: the variable that carries it, or the command."""


@dataclass(frozen=True)
class FlagChange:
    """A change of a script: the name of a flag, and its value before and after; None where it is not given."""

    flag: str
    before: FieldValue
    after: FieldValue

    @property
    def text(self) -> str:
        """Returns the change as `--flag: BEFORE -> AFTER`."""
        before, after = ("not given" if v is None else " ".join(_texts(v)) for v in (self.before, self.after))
        given = " -> ".join(printable(word) or "given" for word in (before, after))
        return f"--{self.flag.replace('_', '-')}: {given}"


@dataclass(frozen=True)
class Patched:
    """A patched script: its `text`, the flags that are other than before, and warnings about the script."""

    text: str
    changes: tuple[FlagChange, ...]
    diagnostics: tuple[Diagnostic, ...]


def onto_script(plan: Plan, exported: Exported, file: Path, options: Options) -> Patched:
    """Returns the script `file` with the flags that make it say `plan`, whose export is `exported`.

    `options` answer what the script leaves open, as for an import. A value that a variable carries is changed where
    the variable is set, if no flag that the plan does not change depends on it; else in the command. The patched script
    is read again, and says the plan. Raises PlanError: the diagnostics of a script that cannot be read, or E1317 for
    each flag that cannot be changed.
    """
    start = Span(str(file), 1, 1, 1, 1)
    try:
        text, raw = read_text(file, MAX_BYTES), read_bounded(file, MAX_BYTES).decode()
    except (OSError, ValueError) as error:
        reason = printable(getattr(error, "strerror", None) or str(error))
        raise PlanError([Diagnostic("E1301", f"{printable(file.name)} cannot be read: {reason}", start)]) from None
    mark, end = raw[: raw.startswith("\ufeff")], "\r\n" if "\r\n" in raw else "\n"
    if mark + text.replace("\n", end) != raw:
        raise PlanError([Diagnostic("E1317", "its lines end in different ways", start)])
    refused: list[Diagnostic] = []
    for where in ("set", "stands"):
        try:
            found = _Patch(plan, exported, file, options, where).patched(text)
        except PlanError as error:
            refused = refused or list(error.diagnostics)
        else:
            return replace(found, text=mark + found.text.replace("\n", end))
    raise PlanError(refused)


class _Patch:
    """Changes a script until it says the plan. `where` is the place at which values in variables are changed."""

    def __init__(self, plan: Plan, exported: Exported, file: Path, options: Options, where: Where) -> None:
        self._plan, self._exported, self._file, self._where = plan, exported, file, where
        setup = exported.setup
        self._options = replace(options, cluster=setup.cluster, devices=setup.devices)
        nodes = re.match(r"(\d+) x ", setup.cluster)
        count = int(nodes[1]) if nodes else 0
        self._ranks = {**dict.fromkeys(NODES, count), **dict.fromkeys(RANKS, setup.devices // count)} if count else {}
        self._changes: dict[str, FlagChange] = {}

    def patched(self, text: str) -> Patched:
        first = self._document(self._read(text))
        for _ in range(MAX_ROUNDS):
            edits = [*self._round(_Script(str(self._file), text))]
            if not edits:
                break
            text = self._applied(text, edits)
        last = self._read(text, launched=True)
        if last.setup is None:
            raise PlanError([d for d in last.diagnostics if d.severity == "error"])
        other = [*self._others(first, self._document(last)), *self._lost(last.setup)]
        if other:
            message = f"its flags can be changed, but the script then says something else of {', '.join(other)}"
            raise PlanError([Diagnostic("E1317", printable(message), first.whole(), help=_BY_HAND)])
        warned = tuple(d for d in last.diagnostics if d.severity == "warning")
        return Patched(text, tuple(self._changes.values()), warned)

    def _read(self, text: str, *, launched: bool = False) -> Imported:
        """Imports the script with the text `text`. Unless `launched`, the number of ranks that it starts does not
        count."""
        given = {n: v for n, v in (self._options.given or {}).items() if n not in self._changes}
        ignored = (*self._options.ignored, *(() if launched else (*NODES, *RANKS)))
        options = replace(self._options, given=given, ignored=ignored)
        return import_files([self._file], options, self._exported.system.name, {self._file: text})

    def _document(self, found: Imported) -> Document:
        if not found.documents or found.documents[0].format != "flags":
            errors = [d for d in found.diagnostics if d.severity == "error"]
            other = Diagnostic("E1317", "it is no script with flags", Span(str(self._file), 1, 1, 1, 1))
            raise PlanError(errors or [other])
        return found.documents[0]

    def _lost(self, setup: TrainingSetup) -> tuple[str, ...]:
        """Returns the verbs whose sentences mean something else in the plan of `setup`."""
        own = self._exported.setup
        said = self._as_plan(setup)
        if said is not None and said.shape == own.shape:
            setup = replace(setup, model=own.model)
        again = replace(setup, cluster=own.cluster, framework=own.framework)
        back = built_of(again, Path(self._plan.file).parent)
        lost = differing(self._plan, back) if back else ("mesh",)
        near = {d.message.partition("`")[2].partition(" ")[0] for d in self._exported.diagnostics}
        return tuple(verb for verb in lost if verb not in near)

    def _others(self, first: Document, last: Document) -> Iterator[str]:
        """Yields flags that have another value than before, although the plan does not change them."""
        before, after = (self._given(document) for document in (first, last))
        for name in dict.fromkeys([*before, *after]):
            one, other = before.get(name), after.get(name)
            if name not in self._changes and (one and one.value) != (other and other.value):
                yield f"`{name}`"

    def _given(self, document: Document) -> dict[str, Given]:
        known = self._exported.system.known
        return {(f.name if (f := known(name)) else name): given for name, given in document.fields.items()}

    # What changes.

    def _round(self, script: _Script) -> Iterator[_Edit]:
        found = self._read(script.text)
        document = self._document(found)
        given = self._given(document)
        values = {name: one.value for name, one in given.items()}
        values |= {name: value for name, value in (self._options.given or {}).items() if name not in self._changes}
        wanted, current = self._fitted(self._exported.fields, values), self._current(found.setup, values)
        refused: list[Diagnostic] = []
        added: list[tuple[str, Any]] = []
        for name in dict.fromkeys([*wanted, *self._exported.system.writes, *self._alternatives(found, given, wanted)]):
            value = wanted.get(name, OMIT)
            if name in current and current[name] == value:
                continue
            before = given.get(name)
            if before is None and value is OMIT:
                continue
            if before is not None and _texts(before.value) == _texts(value):
                continue
            try:
                if before is None:
                    added.append((name, value))
                elif value is OMIT:
                    yield from script.removed(before)
                else:
                    yield from script.changed(before, value, self._where)
            except _CannotChangeError as error:
                refused.append(_cannot(name, value, error.span, script))
                continue
            first = self._changes[name].before if name in self._changes else before.value if before else None
            self._changes[name] = FlagChange(name, first, None if value is OMIT else value)
        for name, one in (document.launcher or {}).items():
            count = self._ranks.get(name)
            if count and str(one.value).isdecimal() and int(str(one.value)) != count:
                try:
                    yield from script.changed(one, count, self._where)
                except _CannotChangeError as error:
                    refused.append(_cannot(name, count, error.span, script))
                    continue
                self._changes[name] = FlagChange(name, one.value, count)
        if added:
            try:
                yield script.added(added, given, list(self._exported.system.writes))
            except _CannotChangeError as error:
                refused += [_cannot(name, value, error.span, script) for name, value in added]
        if refused:
            raise PlanError(in_order(refused))

    def _current(self, setup: TrainingSetup | None, values: Mapping[str, FieldValue]) -> Mapping[str, Any]:
        """Returns the fields that the script has now, as an export would write them; {} if it says no plan."""
        said = self._as_plan(setup)
        writes = self._exported.system.writes
        try:
            return self._fitted({name: write(said) for name, write in writes.items()}, values) if said else {}
        except CannotSayError:
            return {}

    def _as_plan(self, setup: TrainingSetup | None) -> TrainingSetup | None:
        """Returns `setup` as a plan has it: with the sizes of its model."""
        plan = built_of(setup, Path(self._plan.file).parent) if setup else None
        try:
            return setup_of(plan) if plan else None
        except CannotSayError:
            return None

    def _fitted(self, wanted: Mapping[str, Any], values: Mapping[str, FieldValue]) -> Mapping[str, Any]:
        fitted = self._exported.system.fitted
        return fitted(wanted, values) if fitted else wanted

    def _alternatives(self, found: Imported, given: Mapping[str, Given], wanted: Mapping[str, Any]) -> Iterator[str]:
        """Yields given flags that no export writes, and that decide a setting which the plan has otherwise:
        `--num-layers-per-virtual-pipeline-stage`."""
        own, setup = self._exported.setup, found.setup
        if setup is None or found.origins is None:
            return
        for setting in (f.name for f in fields(TrainingSetup)):
            if setting not in _NOT_OF_FLAGS and getattr(setup, setting) != getattr(own, setting):
                for origin in found.origins.get(setting, ()):
                    known = self._exported.system.known(origin.name)
                    if known and known.name in given and known.name not in self._exported.system.writes:
                        yield known.name

    def _applied(self, text: str, edits: Sequence[_Edit]) -> str:
        whole = sorted(dict.fromkeys(edits), reverse=True)
        for (start, _, _), (_, end, _) in pairwise(whole):
            if start < end:
                message = "two flags that must differ take their values from one variable"
                raise PlanError([Diagnostic("E1317", message, Span(str(self._file), 1, 1, 1, 1), help=_BY_HAND)])
        for start, end, new in whole:
            text = text[:start] + new + text[end:]
        return text


_NOT_OF_FLAGS = ("name", "model", "shape", "graph", "cluster", "devices", "framework")
"""Fields of a setup that are not compared, or not with a flag each."""
_BY_HAND = "planc export --to megatron writes all the flags, to be put in by hand"
_Edit = tuple[int, int, str]
"""Offsets of a text's part, and what takes its place."""


class _CannotChangeError(ValueError):
    def __init__(self, span: Span) -> None:
        super().__init__(span.where())
        self.span = span


def _cannot(name: str, value: object, span: Span, script: _Script) -> Diagnostic:
    flag = f"--{name.replace('_', '-')}"
    shown = "" if value is OMIT else f" {printable(' '.join(_texts(value)))}"
    what = f"without `{flag}`" if value is OMIT else f"with `{flag}{shown if value is not True else ''}`"
    line = printable(script.source.line(span.line).strip())[:80]
    message = f"the script must be {what}, and planc cannot say so at line {span.line}, `{line}`"
    help = "change that line by hand, or give the value where the script is started, and there in --set"
    return Diagnostic("E1317", message, span, help=help)


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, tuple):
        return tuple(map(str, value))
    return () if value is True else (str(value),)


class _Script:
    """The text of a script, in which flags are found and changed."""

    def __init__(self, file: str, text: str) -> None:
        self.text, self.source = text, Source.of(file, text)
        self._starts = list(accumulate((len(line) + 1 for line in self.source.lines), initial=0))

    @cached_property
    def _scan(self) -> Scan:
        return Scan(Places(self.source), self.text)

    def _range(self, span: Span) -> tuple[int, int]:
        if span.file != self.source.file:
            raise _CannotChangeError(span)
        return self._starts[span.line - 1] + span.column - 1, self._starts[span.end_line - 1] + span.end_column - 1

    def _inner(self, span: Span) -> tuple[int, str]:
        """Returns the word at `span` without its quotes and the flag before it, and where that begins."""
        start, end = self._range(span)
        found = _INNER.fullmatch(self.text[start:end])
        assert found is not None
        return start + len(found[1]), found[2]

    def changed(self, given: Given, value: object, where: Where) -> Iterator[_Edit]:
        """Yields the edits that give a flag the words of `value`."""
        old, new = _texts(given.value), _texts(value)
        places = given.places[1:]
        if not given.certain or not old or len(places) != len(old):
            raise _CannotChangeError(given.span)
        if len(old) != len(new):
            (start, _), (_, end) = self._range(places[0][0]), self._range(places[-1][0])
            yield start, end, " ".join(self._quoted(word, start) for word in new)
            return
        for (stands, set_at), before, after in zip(places, old, new, strict=True):
            if before != after:
                start, end = self._place_of(stands, set_at, before, where)
                inside = self._is_quoted(start) or self.text[start - 1 : start] in ('"', "'")
                if inside and _SPECIAL_IN_QUOTES.search(after):
                    raise _CannotChangeError(stands)
                yield start, end, after if inside else self._quoted(after, start)

    def _place_of(self, stands: Span, set_at: Span, old: str, where: Where) -> tuple[int, int]:
        if set_at.empty:  # it is from the command line
            raise _CannotChangeError(stands)
        if where == "stands":
            start, inner = self._inner(stands)
            if inner == old or inner.startswith("$"):
                return start, start + len(inner)
            raise _CannotChangeError(stands)
        for span in (set_at, stands):
            if (found := self._literal(span, old)) is not None:
                return found
        start, inner = self._inner(stands)
        if (found := self._assigned(inner, old)) is not None:
            return found
        if inner.startswith("$(("):
            return start, start + len(inner)
        raise _CannotChangeError(set_at)

    def _literal(self, span: Span, old: str) -> tuple[int, int] | None:
        """Returns where `old` is written at `span`: as it is, or as the default of a variable."""
        start, inner = self._inner(span)
        if inner == old:
            return start, start + len(inner)
        default = _DEFAULT.fullmatch(inner)
        return (start + default.start(1), start + default.end(1)) if default and default[1] == old else None

    def _assigned(self, inner: str, old: str) -> tuple[int, int] | None:
        """Returns where the one assignment of the variable `inner` has `old`."""
        if (found := _VARIABLE.fullmatch(inner)) is None:
            return None
        name, places = found[1] or found[2], []
        for word in self._scan.words:
            at = ASSIGNMENT.match(word.pieces[0].text) if word.pieces and not word.pieces[0].quoted else None
            if at is not None and at[1] == name:
                places.append((word.span, at.end()))
        if len(places) != 1:
            return None
        span, skipped = places[0]
        return self._literal(replace(span, column=span.column + skipped), old)

    def removed(self, given: Given) -> Iterator[_Edit]:
        """Yields the edits that take a flag and its values out, and its line if nothing else is on it."""
        if not given.certain or not given.places:
            raise _CannotChangeError(given.span)
        stands, set_at = given.places[0]
        flag = stands if len(given.places) > 1 else set_at
        start, end = self._range(flag)
        if not self.text[start:end].strip("\"'").startswith("-") or len(_texts(given.value)) != len(given.places) - 1:
            raise _CannotChangeError(given.span)
        if len(given.places) > 1:
            last = self._range(given.places[-1][0])
            if last[1] < end or re.search(r"[;|&()]|\n\s*\n", self.text[end : last[0]]):
                raise _CannotChangeError(given.span)
            end = last[1]
        while start and self.text[start - 1] in " \t":
            start -= 1
        line_end = self.text.find("\n", end)
        line_end = len(self.text) if line_end < 0 else line_end
        first = start == 0 or self.text[start - 1] == "\n"
        if first and self.text[end:line_end].strip() in ("", "\\"):
            end = min(line_end + 1, len(self.text))
        yield start, end, ""

    def added(self, flags: Sequence[tuple[str, Any]], given: Mapping[str, Given], order: Sequence[str]) -> _Edit:
        """Returns the edit that adds `flags` behind one that the script has."""
        for name in ("pipeline_model_parallel_size", "tensor_model_parallel_size", *order):
            one = given.get(name)
            if one is None or not one.certain or not one.places:
                continue
            try:
                start, end = self._range(one.places[0][0])
                if self.text[start : start + 2] == "--":
                    end = max(end, self._range(one.places[-1][0])[1])
                    if self.text[end : end + 1] in ("", " ", "\t", "\n", '"', "'", ")"):
                        words = [w for n, v in flags for w in (f"--{n.replace('_', '-')}", *_texts(v))]
                        return end, end, "".join(f" {self._quoted(word, end)}" for word in words)
            except _CannotChangeError:
                continue
        raise _CannotChangeError(Span(self.source.file, 1, 1, 1, 1))

    def _is_quoted(self, at: int) -> bool:
        pieces = (piece for word in self._scan.words for piece in word.pieces if piece.quoted)
        return any(piece.at <= at <= piece.at + len(piece.text) and piece.at >= 0 for piece in pieces)

    def _quoted(self, word: str, at: int) -> str:
        """Returns `word` as it is written at the offset `at`, which may be inside quotes."""
        if not self._is_quoted(at):
            return shell_word(word)
        if _SPECIAL_IN_QUOTES.search(word):
            line = self.text.count("\n", 0, at) + 1
            raise _CannotChangeError(Span(self.source.file, line, 1, line, 1))
        return word
