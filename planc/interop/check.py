"""`planc check` of another system's file: its plan's findings, at the places of the fields that they come from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from planc.diag.diagnostic import in_order
from planc.diag.fast_dataclass import dataclass
from planc.diag.span import Source
from planc.driver import Examined, examine, unread
from planc.interop.importing import Imported, import_files, in_files
from planc.interop.values import Options
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
    found = [*imported.diagnostics, *(d for one in examined.report.diagnostics for d in in_files(one, path, imported))]
    report = replace(examined.report, diagnostics=in_order(found))
    sources = {**examined.sources, **imported.sources, str(path): Source.of(str(path), imported.text)}
    return ForeignExamined(replace(examined, report=report, sources=sources), imported)
