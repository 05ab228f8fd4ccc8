"""Runs `planc check` on another system's files, and reports each diagnostic at the field that causes it."""

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
    """Result of checking another system's files: `examined` is the check of the imported plan, with each diagnostic
    placed in those files; `imported` is the import."""

    examined: Examined
    imported: Imported


def examine_files(
    files: list[Path], options: Options, system: str = "", target: AnyTarget | None = None
) -> ForeignExamined:
    """Imports `files` as a plan, then checks and costs it for `target` (None: the plan's own target), as `examine`
    does.

    The arguments `options` and `system` are those of `import_files`. A diagnostic about a sentence is placed at the
    field that the sentence comes from, or at the start of the first file if it comes from defaults.
    """
    imported = import_files(files, options, system)
    if imported.setup is None:
        return ForeignExamined(unread(imported.diagnostics, imported.sources), imported)
    path = files[0].parent / f"{imported.setup.name}.plan"
    examined = examine(path, target=target, unsaved={path.resolve(): imported.text})
    found = [*imported.diagnostics, *(d for one in examined.report.diagnostics for d in in_files(one, path, imported))]
    report = replace(examined.report, diagnostics=in_order(found), inexact=imported.inexact)
    sources = {**examined.sources, **imported.sources, str(path): Source.of(str(path), imported.text)}
    return ForeignExamined(replace(examined, report=report, sources=sources), imported)
