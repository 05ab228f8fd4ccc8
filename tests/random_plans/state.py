"""The state of a campaign: a line of JSON for each plan, so that it can stop at any time and go on where it was."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Line = dict[str, Any]


def lines(path: Path) -> Iterator[Line]:
    """The lines of a state file; a last one that was cut off in the middle is left out."""
    if path.exists():
        for text in path.read_text().splitlines():
            try:
                yield json.loads(text)
            except ValueError:
                continue


def add(path: Path, line: Line) -> None:
    """Append a line, whole or (when the process is ended there) not at all as far as `lines` can see."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cut_off = path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
    with path.open("a") as file:
        file.write(("\n" if cut_off else "") + json.dumps(line) + "\n")


def done(path: Path, part: str) -> set[int]:
    """Seeds of a part of the campaign, such as `checked` or `cuda`, that have a line."""
    return {line["seed"] for line in lines(path) if line["part"] == part}


def sums(path: Path) -> list[str]:
    """A line of text for each part: plans by outcome, codes, and the slowest answer."""
    found = []
    by_part: dict[str, list[Line]] = {}
    for line in lines(path):
        by_part.setdefault(line["part"], []).append(line)
    for part, rows in by_part.items():
        outcomes = Counter(row["outcome"] for row in rows)
        codes = Counter(code for row in rows for code in row.get("codes", ()))
        slowest = max(rows, key=lambda row: row.get("seconds", 0.0))
        text = f"{part}: {len(rows):,} plans: {', '.join(f'{k} {n:,}' for k, n in outcomes.most_common())}"
        if codes:
            text += f"; {', '.join(f'{code} {n:,}' for code, n in codes.most_common())}"
        found.append(f"{text}; slowest {slowest.get('seconds', 0.0):.1f} s (seed {slowest['seed']})")
    return found


def record(path: Path, results: Path, date: str) -> None:
    """Append a table for each part to the committed results: the seeds of the state file that no table counts yet."""
    tables, text = [], results.read_text()
    counted = tomllib.loads(text).get("run", [])
    for part in dict.fromkeys(line["part"] for line in lines(path)):
        before = {seed for run in counted if run["part"] == part for seed in seeds_of(run["seeds"])}
        rows = [line for line in lines(path) if line["part"] == part and line["seed"] not in before]
        if rows:
            tables.append(_table(part, date, rows))
    results.write_text("\n".join([text.rstrip("\n") + "\n", *tables]))


def _table(part: str, date: str, rows: list[Line]) -> str:
    outcomes = Counter(row["outcome"] for row in rows)
    counts = "".join(f"{name} = {n}\n" for name, n in outcomes.most_common())
    seeds = text_of({row["seed"] for row in rows})
    return f'[[run]]\npart = "{part}"\ndate = {date}\nseeds = "{seeds}"\nplans = {len(rows)}\n{counts}'


def text_of(seeds: set[int]) -> str:
    """Seeds as a text of their runs, such as `0-17 20 22-23`."""
    firsts = sorted(seed for seed in seeds if seed - 1 not in seeds)
    lasts = sorted(seed for seed in seeds if seed + 1 not in seeds)
    return " ".join(f"{a}-{b}" if a < b else f"{a}" for a, b in zip(firsts, lasts, strict=True))


def seeds_of(text: str) -> set[int]:
    """The seeds of such a text."""
    spans = [[int(seed) for seed in run.split("-")] for run in text.split()]
    return {seed for span in spans for seed in range(span[0], span[-1] + 1)}
