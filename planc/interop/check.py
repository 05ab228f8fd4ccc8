"""`planc check` of another system's file: its plan's findings, at the places of the fields that they come from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from planc.diag.diagnostic import Diagnostic, in_order
from planc.diag.fast_dataclass import dataclass
from planc.diag.quoting import printable
from planc.diag.span import Source, Span
from planc.driver import Examined, examine, unread
from planc.interop.importing import Imported, import_files
from planc.interop.values import Options, Origin
from planc.ir.target import AnyTarget


@dataclass(frozen=True)
class ForeignExamined:
    """Findings of `examine` about the plan of foreign files, at places in these files, and how they were read."""

    examined: Examined
    imported: Imported


def examine_files(
    files: list[Path], options: Options, system: str = "", target: AnyTarget | None = None
) -> ForeignExamined:
    """Import `files`, then check and cost their plan for `target`, as `examine` does.

    `options` and `system` are those of `import_files`. Findings about a sentence stand at the field that it follows
    from; those of a sentence that follows from defaults alone stand at the whole file, and say so.
    """
    imported = import_files(files, options, system)
    if imported.setup is None:
        return ForeignExamined(unread(imported.diagnostics, imported.sources), imported)
    path = files[0].parent / f"{imported.setup.name}.plan"
    examined = examine(path, target=target, unsaved={path.resolve(): imported.text})
    found = [*imported.diagnostics, *(d for one in examined.report.diagnostics for d in _in_files(one, path, imported))]
    report = replace(examined.report, diagnostics=in_order(found))
    sources = {**examined.sources, **imported.sources, str(path): Source.of(str(path), imported.text)}
    return ForeignExamined(replace(examined, report=report, sources=sources), imported)


def _in_files(found: Diagnostic, path: Path, imported: Imported) -> Iterator[Diagnostic]:
    """The finding with the place of the field that its sentence follows from. Edits of the plan's text are left out."""
    if found.span.file != str(path):
        yield found
        return
    origins = (imported.lines or {}).get(found.span.line, ())
    given = next((o.span for o in origins if o.span is not None), None)
    sentence = imported.text.split("\n")[found.span.line - 1].partition("#")[0]
    shown = f"in the plan: {' '.join(sentence.split())}"
    if given is None:
        shown += _defaults(origins, imported)
    whole = Span(next(iter(imported.sources)), 1, 1, 1, 1)
    help = f"{found.help}; {shown}" if found.help else shown
    yield replace(found, span=given or whole, label="", help=help, related=(), fix=None)


def _defaults(origins: tuple[Origin, ...], imported: Imported) -> str:
    assert imported.system is not None
    shown = ", ".join(f"{o.name} = {printable(str(o.value))[:40]}" for o in origins if not o.option)
    return f", a default of {imported.system.title} ({shown})" if shown else ""
