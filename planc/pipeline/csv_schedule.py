"""Reads schedules from a file in the CSV format of torch's pipeline schedules: one row per rank, one action per cell.

`0F0` is the forward of microbatch 0 on stage 0; B is a whole backward, I and W are its dgrad and wgrad;
`(0F1;3B0)OVERLAP_F_B` runs two actions concurrently; an empty cell is idle time and ignored. A stage is on the rank
whose row has its actions. Source of the format: `torch.distributed.pipelining.schedules`, `_load_csv`.
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
    """Place of a cell in the file: line and columns, counted from 1; `end_column` is the column behind the cell."""

    line: int
    column: int
    end_column: int


class Problem(NamedTuple):
    """A mistake in the file."""

    place: CellPlace
    message: str
    help: str = ""


class Cell(NamedTuple):
    """A cell with one action, or with two that overlap."""

    place: CellPlace
    actions: tuple[Action, ...]


@lru_cache(maxsize=8)
def rows(order: tuple[str, ...]) -> tuple[tuple[Action, ...], ...]:
    """Return the action list of each rank, from the normalized rows in a plan (`order`).

    >>> [[a.text for a in row] for row in rows(("0F0,0B0", "1F0,1B0"))]
    [['0F0', '0B0'], ['1F0', '1B0']]
    """
    return tuple(tuple(a for text in row.split(",") for a in _cell(text)) for row in order)


def stages(order: tuple[str, ...], rank: int) -> tuple[int, ...]:
    """Return the virtual stages of rank `rank`, in order, from normalized rows (`order`)."""
    return tuple(sorted({a.stage for a in rows(order)[rank]}))


def microbatches(order: tuple[str, ...]) -> int:
    """Return the number of microbatches in normalized rows (`order`).

    >>> microbatches(("0F0,0F1,0B0,0B1",))
    2
    """
    return 1 + max(a.microbatch for row in rows(order) for a in row)


def normal(cells: list[list[Cell]]) -> tuple[str, ...]:
    """Return the normalized rows that a plan stores, from a row of `cells` per rank: without idle time and blanks."""
    return tuple(",".join(_text(c.actions) for c in row) for row in cells)


def _text(actions: tuple[Action, ...]) -> str:
    one = ";".join(a.text for a in actions)
    return one if len(actions) == 1 else f"({one})OVERLAP_F_B"


def read(text: str) -> tuple[list[list[Cell]], list[Problem]]:
    """Return a row of cells for each line of the file's `text`, and a problem for each cell that is not an action.

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
    """Return the actions in the text of a cell; () if it is not an action."""
    if both := OVERLAP.fullmatch(text):
        first, second = (_cell(part.strip()) for part in both.groups())
        return (first[0]._replace(overlaps_next=True), second[0]) if len(first) == len(second) == 1 else ()
    one = ACTION.fullmatch(text)
    return (Action(KINDS[one[2]], int(one[1]), int(one[3])),) if one else ()


def check(table: list[list[Cell]], ranks: int) -> Iterator[Problem]:
    """Yield the mistakes of a readable `table` for a pipeline of `ranks` ranks. If several rules are broken, only the
    mistakes against the first one are reported."""
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
    """Yield a mistake for a stage that is on two ranks."""
    home: dict[int, int] = {}
    for rank, row in enumerate(table):
        for cell in row:
            for a in cell.actions:
                if home.setdefault(a.stage, rank) != rank:
                    yield Problem(cell.place, f"stage {a.stage} is on rank {home[a.stage]} and on rank {rank}")
                    return


def _repeated_actions(table: list[list[Cell]]) -> Iterator[Problem]:
    """Yield a mistake for each action that runs twice, and for each backward that runs both as a whole and in two
    actions."""
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
    """Yield a mistake for missing stages (which count from 0), and for microbatches without a forward or backward on
    some stage."""
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
