"""File names as the user wrote them. Spans name a file by its path from the plan's folder."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from planc.diag.diagnostic import Diagnostic, Edit, Fix, Related, bounded, in_order
from planc.diag.errors import PlanError
from planc.diag.span import Span
from planc.language.build import Built


def user_path(name: str, path: Path | None) -> str:
    """Return the path of file `name` from the working folder. Spans give it from the folder of the plan file `path`."""
    if path is None or name.startswith(("plans/hardware/", "plans/layouts/")):
        return name
    return str(path) if name == path.name else os.path.normpath(path.parent / name)


def with_user_paths(d: Diagnostic, path: Path | None, built: Built) -> Diagnostic:
    """Return the diagnostic `d` with the files in its spans named from the user's working folder. `path` is the plan's
    file, `built` the result of reading it."""

    def with_user_path(span: Span) -> Span:
        known = span.file in built.sources or (path is not None and span.file == path.name)
        return replace(span, file=user_path(span.file, path)) if known else span

    fix = d.fix and Fix(d.fix.title, tuple(Edit(with_user_path(e.span), e.text) for e in d.fix.edits), d.fix.safe)
    related = tuple(Related(with_user_path(r.span), r.message) for r in d.related)
    return replace(d, span=with_user_path(d.span), related=related, fix=fix)


def user_error(found: Iterable[Diagnostic], path: Path, built: Built) -> PlanError:
    """Return the exception with the diagnostics `found`, whose files are named from the user's working folder. `path`
    is the plan's file, `built` the result of reading it."""
    return PlanError(bounded(in_order([with_user_paths(d, path, built) for d in found])))
