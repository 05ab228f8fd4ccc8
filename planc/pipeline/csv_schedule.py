"""Reads schedules in the CSV format of torch (`torch.distributed.pipelining.schedules`, `_load_csv`): a line per rank,
an action per cell.

`0F0` is the forward of microbatch 0 on stage 0. B is a backward, I and W are its dgrad and wgrad if they run
separately. `(0F1;3B0)OVERLAP_F_B` runs two actions concurrently. Empty cells (idle time) are ignored. A rank holds the
stages of the actions in its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from planc.pipeline.actions import KINDS, LETTERS, Action

ACTION = re.compile(r"(\d{1,7})([FBIW])(\d{1,7})", re.ASCII)
OVERLAP = re.compile(r"\(([^;()]*);([^;()]*)\)OVERLAP_F_B")


class CellPlace(NamedTuple):
    """Location of a cell in the file: line and columns, counted from 1; `end_column` is the column after the last
    character."""

    line: int
    column: int
    end_column: int


class Problem(NamedTuple):
    """A mistake in the file: its location, a message and help."""

    place: CellPlace
    message: str
    help: str = ""


class Cell(NamedTuple):
    """A cell of the file, with one action, or two that overlap."""

    place: CellPlace
    actions: tuple[Action, ...]


@lru_cache(maxsize=8)
def rows(order: tuple[str, ...]) -> tuple[tuple[Action, ...], ...]:
    """Return the action list of each rank. `order` has one line of comma-separated actions per rank.

    >>> [[a.text for a in row] for row in rows(("0F0,0B0", "1F0,1B0"))]
    [['0F0', '0B0'], ['1F0', '1B0']]
    """
    return tuple(tuple(a for text in row.split(",") for a in _cell(text)) for row in order)


def stages(order: tuple[str, ...], rank: int) -> tuple[int, ...]:
    """Return the virtual stages of rank `rank`, in order. `order` has one line of comma-separated actions per rank."""
    return tuple(sorted({a.stage for a in rows(order)[rank]}))


def microbatches(order: tuple[str, ...]) -> int:
    """Return the number of microbatches. `order` has one line of comma-separated actions per rank.

    >>> microbatches(("0F0,0F1,0B0,0B1",))
    2
    """
    return 1 + max(a.microbatch for row in rows(order) for a in row)


def normal(cells: list[list[Cell]]) -> tuple[str, ...]:
    """Return one line of comma-separated actions per rank, from the `cells` of each rank: a plan stores these lines."""
    return tuple(",".join(_text(c.actions) for c in row) for row in cells)


def _text(actions: tuple[Action, ...]) -> str:
    one = ";".join(a.text for a in actions)
    return one if len(actions) == 1 else f"({one})OVERLAP_F_B"


def read(text: str) -> tuple[list[list[Cell]], list[Problem]]:
    """Return the cells of each line of the file's `text`, and a `Problem` for each cell that is not an action.

    >>> read("0F0,,0X0")[1][0].message
    '`0X0` is not an action'
    """
    table: list[list[Cell]] = []
    problems: list[Problem] = []
    for number, line in enumerate(text.rstrip().split("\n"), 1):
        table.append([])
        column = 1
        for raw in line.rstrip("\r").split(","):
            blank = len(raw) - len(raw.lstrip())
            place = CellPlace(number, column + blank, column + max(blank + len(raw.strip()), 1))
            column += len(raw) + 1
            if not raw.strip():
                continue
            actions = _cell(raw.strip())
            if actions:
                table[-1].append(Cell(place, actions))
            else:
                problems.append(_not_an_action(place, raw.strip()))
    return table, problems


def _not_an_action(place: CellPlace, text: str) -> Problem:
    shown = text if len(text) <= 40 else f"{text[:37]}..."
    letters = ", ".join(f"{letter} {kind.replace('_', ' of ')}" for kind, letter in LETTERS.items())
    return Problem(place, f"`{shown}` is not an action", f"such as 0F3: stage 0, forward, microbatch 3 ({letters})")


def _cell(text: str) -> tuple[Action, ...]:
    if both := OVERLAP.fullmatch(text):
        first, second = (_cell(part.strip()) for part in both.groups())
        return (first[0]._replace(overlaps_next=True), second[0]) if len(first) == len(second) == 1 else ()
    one = ACTION.fullmatch(text)
    return (Action(KINDS[one[2]], int(one[1]), int(one[3])),) if one else ()


def check(table: list[list[Cell]], ranks: int) -> Iterator[Problem]:
    """Yield the mistakes in a `table` (the cells of each rank) for a pipeline of `ranks` ranks. If it breaks several
    rules, only mistakes against one rule are reported."""
    last = CellPlace(len(table), 1, 2)
    if len(table) != ranks:
        yield Problem(last, f"the file has {len(table)} rows and the pipeline {ranks} ranks", "write a row a rank")
        return
    for number, row in enumerate(table, 1):
        if not row:
            yield Problem(CellPlace(number, 1, 2), f"rank {number - 1} has no action", "every rank holds a stage")
            return
    for rule in (_stages_on_two_ranks, _repeated_actions, _missing):
        found = list(rule(table))
        yield from found
        if found:
            return


def _stages_on_two_ranks(table: list[list[Cell]]) -> Iterator[Problem]:
    home: dict[int, int] = {}
    for rank, row in enumerate(table):
        for cell in row:
            for a in cell.actions:
                if home.setdefault(a.stage, rank) != rank:
                    yield Problem(cell.place, f"stage {a.stage} is on rank {home[a.stage]} and on rank {rank}")
                    return


def _repeated_actions(table: list[list[Cell]]) -> Iterator[Problem]:
    """Yield the first action that runs twice; a backward must not run both as B and as I or W."""
    seen: dict[tuple[str, int, int], Cell] = {}
    for row in table:
        for cell in row:
            for a in cell.actions:
                rivals = {"B": "BIW", "F": "F"}.get(LETTERS[a.kind], f"B{LETTERS[a.kind]}")
                for letter in rivals:
                    if first := seen.get((letter, a.stage, a.microbatch)):
                        where = f"line {first.place.line}, column {first.place.column}"
                        yield Problem(cell.place, f"{a.text} runs again: {a.stage}{letter}{a.microbatch} is at {where}")
                        return
                seen[LETTERS[a.kind], a.stage, a.microbatch] = cell


def _missing(table: list[list[Cell]]) -> Iterator[Problem]:
    """Yield the first stage number without actions, or the first microbatch without a forward or backward on a
    stage."""
    places = {(LETTERS[a.kind], a.stage, a.microbatch): c for row in table for c in row for a in c.actions}
    present = {s for _, s, _ in places}
    count, top = len(present), max(present)
    if count != top + 1:
        gone = next(s for s in range(top) if s not in present)
        highest = max(places, key=lambda key: key[1])
        yield Problem(places[highest].place, f"there is a stage {top} and no stage {gone}")
        return
    microbatches = 1 + max(m for _, _, m in places)
    for stage in range(count):
        for m in range(microbatches):
            if absent := _missing_action(places, stage, m):
                row = next(i for i, r in enumerate(table, 1) if any(a.stage == stage for c in r for a in c.actions))
                yield Problem(CellPlace(row, 1, 2), f"{absent} is nowhere", "every stage runs every microbatch once")
                return


def _missing_action(places: dict[tuple[str, int, int], Cell], stage: int, microbatch: int) -> str:
    have = {letter for letter in "FBIW" if (letter, stage, microbatch) in places}
    wanted = {"F"} | ({"I", "W"} if have & {"I", "W"} else {"B"})
    return next((f"{stage}{letter}{microbatch}" for letter in "FBIW" if letter in wanted - have), "")
