"""The compiled plan in a preset: the plan without `use`, `let` and imports, in the same language."""

from __future__ import annotations

import hashlib
import json
import os.path
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from planc.diag import Diagnostic, PlanError
from planc.diag.fast_dataclass import dataclass
from planc.diag.span import Span
from planc.files import MAX_TEXT_BYTES, read_text
from planc.ir.plan import Plan
from planc.ir.saved_model import saved_path
from planc.language.build import Built, build_alone, build_file
from planc.language.framework_rules import settled
from planc.language.in_full import DEFAULT, Row, as_text, in_full
from planc.syntax import parse_text

ONE_TARGET, WITHOUT = "a preset holds no sentence of one target yet", "write a plan for each target, without `on`"


@dataclass(frozen=True)
class Compiled:
    """The text of a compiled plan, and the contents of the `files` that the text names (configs, op graphs, schedules),
    by path."""

    text: str
    files: Mapping[str, str]

    def read(self, name: str, line: int) -> Built:
        """Parse the plan without reading from disk. In the file `name`, the plan starts after `line` lines."""
        return build_alone("\n" * line + self.text, name, self.files)


def compiled(source: Path, given: dict[str, int]) -> Compiled:
    """Return the plan file `source` as a self-contained text.

    Args:
        source: path of the plan file.
        given: integers that replace the values of the plan's `let` sentences, by name.

    Raises:
        PlanError: the plan has mistakes, or sentences that apply to one target only (E0109).
    """
    built = build_file(source, given)
    if built.plan is None:
        raise PlanError(built.diagnostics)
    own = parse_text(built.sources[source.name].text, source.name)
    if only := [s for s in own.sentences if s.target]:
        spans = [replace(s.span, file=str(source)) for s in only]
        raise PlanError([Diagnostic("E0109", ONE_TARGET, span, help=WITHOUT) for span in spans])
    named = {w.text.strip('"') for s in built.sentences for w in s.node.all_words() if w.kind == "STRING"}
    beside = {os.path.normpath(path) for name in named for path in (name, saved_path(name))} & {*built.files}
    there = sorted(name for name in beside if (source.parent / name).is_file())
    files = {name: read_text(source.parent / name, MAX_TEXT_BYTES) for name in there}
    rows = [r for r in in_full(built, built.plan) if r != Row("optimizer adamw", DEFAULT)]  # [train] may choose it
    found = Compiled(as_text(built.plan.name, rows), files)
    again = found.read(source.name, 0).plan
    assert again is not None and again.sha256 == built.plan.sha256, f"in full it is another plan: {source}"
    return found


def plan_of(built: Built, sources: Mapping[str, str], given: Mapping[str, int]) -> Plan | Diagnostic:
    """Return the plan with its layouts resolved, or its first error.

    Args:
        built: the result of `Compiled.read`.
        sources: hexadecimal SHA-256 of the files from which the plan was compiled, by path.
        given: integers that replaced the values of `let` sentences, by name.
    """
    if built.plan is None:
        return next(d for d in built.diagnostics if d.severity == "error")
    return replace(settled(built.plan), sources=dict(sources), set=dict(given))


def checksum(part: Compiled, given: Mapping[str, int]) -> str:
    """Return the hexadecimal SHA-256 of a compiled plan, `part`, and of the `let` values `given` for it. It shows if
    the text was edited by hand."""
    said = [part.text, dict(part.files), dict(given)]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def toml_string(text: str) -> tuple[str, bool]:
    """Return `text` as a TOML string, and True if this is a literal string, False if some characters need escapes."""
    if "'''" not in text and not text.endswith("'") and all(c.isprintable() or c in "\n\t" for c in text):
        return f"'''\n{text}'''", True
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f"), False


def first_line(span: Span, text: str) -> int:
    """Return the number of lines in `text`, a preset, before its compiled plan, whose key is at `span`."""
    # a multi-line TOML string begins on the line after its quotes
    written = text.split("\n")[span.line - 1]
    return span.line if written.rstrip().endswith(("'''", '"""')) else span.line - 1
