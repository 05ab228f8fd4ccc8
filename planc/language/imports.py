"""Reads `import "FILE"`: hardware and layouts of the user, from the plan's folder or below."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path

from planc.diag.diagnostic import Diagnostic, Related
from planc.diag.fast_dataclass import dataclass
from planc.diag.span import Source, Span
from planc.files import TooLargeError, leads_out
from planc.language.draft import Draft, file_content
from planc.syntax import Tree, parse_text
from planc.syntax.lines import MACHINE, MOST_SENTENCES
from planc.syntax.tree import Sentence

MAX_BYTES = 1_000_000
MOST_FILES = 100
"""Number of files that one plan may import, transitively."""


@dataclass
class Files:
    """Every file that is read for one plan: its text (to quote lines), its SHA-256 (to detect changes), and the
    imported layouts by name."""

    root: Path
    sources: dict[str, Source] = field(default_factory=dict)
    sha256: dict[str, str] = field(default_factory=dict)
    layouts: dict[str, Tree] = field(default_factory=dict)
    sentences: int = 0
    """Number of sentences in the files read so far."""
    size: int = 0
    """Bytes of the files read so far."""
    unsaved: Mapping[Path, str] = field(default_factory=dict)
    """Texts that replace those on disk, by resolved path: an editor's, or a preset's."""
    alone: bool = False
    """True if only those texts exist: nothing is read from disk."""

    def read(self, path: Path, name: str, place: Span | None = None) -> Tree | Diagnostic:
        """Return the parsed file at `path`, or a diagnostic if it cannot be read as text.

        Args:
            path: the file's path; an editor's unsaved text takes precedence.
            name: the file name for diagnostics.
            place: location of the sentence that names the file, for the diagnostic; None: the start of the file.
        """
        at = place or Span(name, 1, 1, 1, 1)
        try:
            if Path(os.path.realpath(path)) not in self.unsaved and not self.alone and leads_out(path):
                return Diagnostic("E0111", f"{name} is a link out of its folder", at, help="copy the file")
            data = file_content(path, MAX_BYTES, self.unsaved, alone=self.alone)
        except TooLargeError:
            return Diagnostic("E0105", f"{name} is larger than {MAX_BYTES // 1000} kB, no plan is", at)
        except OSError as error:
            reason = getattr(error, "strerror", None) or str(error)
            return Diagnostic("E0104", f"{name} cannot be read: {reason}", at, help="name a plan file")
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            return Diagnostic(
                "E0105", f"{name} is not text: byte {error.start} is not UTF-8", at, help="name a plan file"
            )
        if "\0" in text:
            return Diagnostic("E0105", f"{name} is not text: it holds a null byte", at, help="name a plan file")
        self.size += len(data)
        if self.size > MAX_BYTES:
            together = f"the plan and its imports are larger than {MAX_BYTES // 1000} kB together, no plan is"
            return Diagnostic("E0117", together, at)
        self.sha256[name] = hashlib.sha256(data).hexdigest()
        parsed = parse_text(text, name)
        self.sources[name] = parsed.source
        self.sentences += len(parsed.sentences) + len(parsed.unread)
        return parsed

    def add(self, read: Mapping[str, tuple[Source, bytes]]) -> None:
        """Add files that were read elsewhere, such as CSV schedules. `read` maps the name of each file to (source,
        content)."""
        for name, (source, data) in read.items():
            self.sources[name] = source
            self.sha256[name] = hashlib.sha256(data).hexdigest()


def read_imports(sentences: tuple[Sentence, ...], files: Files, draft: Draft) -> list[Sentence]:
    """Return `sentences` without the `import` sentences. Imported hardware is added to `draft`, imported layouts to
    `files`."""
    rest: list[Sentence] = []
    for sentence in sentences:
        if sentence.verb == "import":
            _import(sentence, files, draft)
        else:
            rest.append(sentence)
    return rest


def _import(sentence: Sentence, files: Files, draft: Draft) -> None:
    word = sentence.node.words("STRING")[0]
    name = word.text.strip('"')
    path = draft.inside(name, word.span)
    if path is None:
        return
    relative = path.relative_to(draft.root.resolve()).as_posix()
    if files.sentences > MOST_SENTENCES:
        help = f"at most {MOST_SENTENCES:,} sentences, comments not counted"
        draft.report("E0117", word.span, f"the files before hold {files.sentences:,} sentences together", help=help)
        return
    if len(files.sources) > MOST_FILES:
        draft.report("E0111", word.span, f"a plan imports at most {MOST_FILES} files")
        return
    if relative in files.sources:
        draft.report("E0111", word.span, f"{relative} is imported twice, or imports itself")
        return
    parsed = files.read(path, relative, word.span)
    if isinstance(parsed, Diagnostic):
        draft.diagnostics.append(parsed)
        return
    draft.diagnostics += parsed.diagnostics
    draft.losses += len(parsed.unread)
    inner = read_imports(parsed.sentences, files, draft)
    header = parsed.header
    if header is not None and header.verb == "layout":
        if header.node.words("NAME")[0].text in files.layouts:
            draft.report("E0107", header.span, f"layout `{header.node.words('NAME')[0].text}` is imported twice")
        layout = replace(parsed, header=header, sentences=tuple(inner), diagnostics=())
        files.layouts[header.node.words("NAME")[0].text] = layout
    elif header is not None and header.verb == "hardware":
        _declared_once(inner, draft)
        draft.hardware += inner
    elif header is not None:
        draft.report("E0111", word.span, f"{relative} is a plan; layouts and hardware are imported")


def declared_here(sentences: list[Sentence], draft: Draft) -> list[Sentence]:
    """Return the plan's `sentences` without its hardware declarations, which are added to `draft` like imported
    ones."""
    machine = [s for s in sentences if s.verb in MACHINE]
    _declared_once(machine, draft)
    draft.hardware += machine
    return [s for s in sentences if s.verb not in MACHINE]


NAMELESS = ("points", "wire", "measured")
"""Sentences of a hardware file that do not declare exactly one name."""


def _declared_once(sentences: list[Sentence], draft: Draft) -> None:
    """Report E0107 for a chip, link, node or torus that is declared twice."""
    known = {(s.verb, _name(s)): s for s in draft.hardware if s.verb not in NAMELESS}
    for sentence in (s for s in sentences if s.verb not in NAMELESS):
        first = known.setdefault((sentence.verb, _name(sentence)), sentence)
        if first is not sentence:
            draft.report(
                "E0107",
                sentence.span,
                f"{sentence.verb} `{_name(sentence)}` is declared twice",
                related=(Related(first.span, "first here"),),
                help="keep one, or give the other a name of its own",
            )


def _name(sentence: Sentence) -> str:
    """Return the declared name; "" for a price, which has none."""
    if sentence.verb == "price":
        return ""
    call = sentence.node.node("call") if sentence.verb != "fabric" else None
    words = (call or sentence.node).words()
    return words[0].text if words else ""
