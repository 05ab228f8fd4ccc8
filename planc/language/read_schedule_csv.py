"""Reads `as csv("FILE")`: a pipeline schedule from a CSV file in the plan's folder or below."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planc.diag.diagnostic import Related
from planc.diag.span import Source, Span
from planc.files import TooLargeError
from planc.language.draft import Draft
from planc.pipeline.actions import Action
from planc.syntax.tree import Word

if TYPE_CHECKING:
    from planc.pipeline import csv_schedule

MAX_BYTES = 1_000_000
MOST_FINDINGS = 20
"""Number of cells of one file that are reported."""


def read_schedule(word: Word, ranks: int, draft: Draft) -> tuple[str, ...] | None:
    """Return each rank's pipeline actions, as comma-separated text, from the file that `word` names. None (reported) if
    the file has no valid schedule for this number of `ranks`."""
    from planc.pipeline import csv_schedule

    name = word.text.strip('"')
    path = draft.inside(name, word.span)
    if path is None:
        return None
    name = path.relative_to(draft.root.resolve()).as_posix()
    try:
        data = draft.content(path, MAX_BYTES)
        text = data.decode("utf-8-sig")
    except TooLargeError:
        draft.report("E0104", word.span, f"{name} is larger than {MAX_BYTES // 1000} kB, no schedule is")
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        draft.report("E0104", word.span, f"{name} cannot be read: {reason}")
        return None
    draft.read[name] = (Source.of(name, text), data)
    table, problems = csv_schedule.read(text)
    problems = problems or list(csv_schedule.check(table, ranks))
    for problem in problems[:MOST_FINDINGS]:
        line, column, end = problem.place
        related = (Related(word.span, "the schedule of this pipeline"),)
        draft.report("E0411", Span(name, line, column, line, end), problem.message, help=problem.help, related=related)
    if problems:
        return None
    order = csv_schedule.normal(table)
    return order if _runs_to_end(order, table, name, word, draft) else None


def _runs_to_end(
    order: tuple[str, ...], table: list[list[csv_schedule.Cell]], name: str, word: Word, draft: Draft
) -> bool:
    """True if the schedule does not deadlock. Otherwise the ranks that wait for each other are reported."""
    from planc.pipeline.deadlock import circle_of

    circle = circle_of(order)
    if not circle:
        return True
    first, *rest = circle
    cells = {a[:3]: cell.place for row in table for cell in row for a in cell.actions}

    def span(action: Action) -> Span:
        line, column, end = cells[action[:3]]
        return Span(name, line, column, line, end)

    draft.report(
        "E0412",
        span(first.action),
        f"the schedule deadlocks: {'; '.join(w.text() for w in circle)}",
        help="no rank can go on: let one of them run what the next one waits for first",
        related=(
            *(Related(span(w.action), w.text()) for w in rest),
            Related(word.span, "the schedule of this pipeline"),
        ),
    )
    return False
