"""One open file as planc sees it: its sentences, its diagnostics and, for a plan, its report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path

from planc.diag.diagnostic import Diagnostic, in_order
from planc.diag.span import Span
from planc.driver import Examined, examine
from planc.ir.target import TARGETS, AnyTarget
from planc.language.build import Built, build_file, build_serve
from planc.language.draft import NameLookup
from planc.language.imports import MAX_BYTES
from planc.language.read_part import read_part
from planc.syntax import Tree, parse_text
from planc.syntax.tree import Sentence, Word

LIBRARY = ("plans/hardware/", "plans/layouts/")


@dataclass(frozen=True)
class EditorSettings:
    """Settings of an editor: the target whose collectives are shown, and values of `let` names."""

    target: AnyTarget | None = None
    set: Mapping[str, int] | None = None


@dataclass(frozen=True)
class Opened:
    """A file that is open in the editor. `built` is None for layouts and hardware files, which are parts of a plan, and
    `checked` for them and for serve plans."""

    path: Path
    text: str
    file: Tree
    checked: Examined | None
    built: Built | None
    diagnostics: tuple[Diagnostic, ...]
    lookups: tuple[NameLookup, ...] = ()

    @property
    def sentences(self) -> tuple[Sentence, ...]:
        """The sentences as the user wrote them, the header first."""
        header = self.file.header
        return (header, *self.file.sentences) if header else self.file.sentences

    @property
    def meant(self) -> tuple[Sentence, ...]:
        """The sentences as planc reads them: shorthands are expanded, and overridden sentences left out."""
        return self.built.sentences if self.built else ()

    @cached_property
    def lookups_by_span(self) -> dict[Span, NameLookup]:
        """The names in this file that planc looked up, by span."""
        return {a.word.span: a for a in self.lookups if a.word.span.file == self.path.name}

    @cached_property
    def read(self) -> frozenset[Path]:
        """The resolved paths of the files that were read to check this file, itself included."""
        names = {self.path.name, *(self.built.sources if self.built else ())}
        return frozenset((self.path.parent / name).resolve() for name in names)

    def sentence_at(self, line: int) -> Sentence | None:
        """Return the sentence on `line` (1-based); None between sentences."""
        return next((s for s in self.sentences if s.span.line <= line <= s.span.end_line), None)

    def where(self, file: str) -> Path:
        """Return the path of `file`, the file name in a span: of the library, or relative to the plan."""
        return locate(file, self.path.parent)

    def files(self) -> Iterator[Tree]:
        """Yield this file and its imports, parsed."""
        yield self.file
        for name, source in (self.built.sources if self.built else {}).items():
            if name != self.path.name:
                yield parse_text(source.text, name)


def open_file(path: Path, text: str, unsaved: Mapping[Path, str], settings: EditorSettings) -> Opened:
    """Return the result of checking `text` as the file at `path`. `unsaved` has every open text by resolved path."""
    file = parse_text(text if len(text) <= MAX_BYTES else "", path.name)
    verb = file.header.verb if file.header is not None else "plan"
    texts, given = {**unsaved, path.resolve(): text}, dict(settings.set or {})
    if verb == "serve":
        from planc.driver.serving import examine_serve

        served = examine_serve(path, set=given, target=settings.target, unsaved=texts)
        return Opened(path, text, file, None, served.built, served.report.diagnostics, served.built.lookups)
    if verb != "plan":
        draft = read_part(file)
        found = in_order([d for d in draft.diagnostics if d.span.file == path.name])
        return Opened(path, text, file, None, None, found, tuple(draft.lookups))
    checked = examine(path, set=given, target=settings.target, unsaved=texts)
    lookups = checked.built.lookups if checked.built else ()
    return Opened(path, text, file, checked, checked.built, checked.report.diagnostics, lookups)


def names_in(path: Path, text: str, unsaved: Mapping[Path, str], settings: EditorSettings) -> tuple[NameLookup, ...]:
    """Return the names looked up while `text` is read, without costing. `unsaved` are open texts by path."""
    file = parse_text(text, path.name)
    verb = file.header.verb if file.header is not None else "plan"
    texts = {**unsaved, path.resolve(): text}
    if verb == "serve":
        return build_serve(path, dict(settings.set or {}), texts).lookups
    if verb != "plan":
        return tuple(read_part(file).lookups)
    on = settings.target if settings.target in TARGETS else ""
    return build_file(path, dict(settings.set or {}), on or "", texts).lookups


def locate(file: str, folder: Path) -> Path:
    """Return the path of `file`, as a span names it. `folder` is the folder of the plan."""
    if file.startswith(LIBRARY):
        bundled = Path(str(files("planc.plans").joinpath(file.split("/")[1]).joinpath(file.split("/", 2)[2])))
        if bundled.is_file():
            return bundled
    return folder / file


def word_at(sentence: Sentence, line: int, column: int) -> Word | None:
    """Return the word of `sentence` that contains the position `line` and `column` (1-based), or ends there."""
    words = [w for w in sentence.node.all_words() if w.span.line == line and w.span.column <= column]
    touched = [w for w in words if column <= w.span.end_column]
    return touched[-1] if touched else None
