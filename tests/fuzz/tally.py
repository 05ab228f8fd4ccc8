"""Counts of what was fuzzed: a state file that goes on where it was, and the sums that are committed.

The state file has a line for each stretch of inputs of a seed. `results.toml` has, for each kind, how many inputs of
each seed were run, how far they came, and what failed. A stretch that the sums have is not added again.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results.toml"


@dataclass
class Sums:
    """All counts of one kind. Tracebacks and hangs are all that were ever met, those mended since too."""

    seeds: dict[str, int] = field(default_factory=dict)
    """By seed the number of inputs, from its first."""
    reached: Counter[str] = field(default_factory=Counter)
    tracebacks: int = 0
    hangs: int = 0
    slowest_s: float = 0.0

    @property
    def inputs(self) -> int:
        return sum(self.seeds.values())

    def add(self, stretch: dict[str, Any]) -> None:
        """Count a stretch that follows on what is there; any other is passed over."""
        seed = str(stretch["seed"])
        if stretch["start"] != self.seeds.get(seed, 0):
            return
        self.seeds[seed] = stretch["stop"]
        self.reached.update(stretch["reached"])
        self.slowest_s = max(self.slowest_s, stretch["slowest_s"])
        hangs = sum("hang" in failure["failure"] for failure in stretch["failures"])
        self.hangs += hangs
        self.tracebacks += len(stretch["failures"]) - hangs


def stretches(state: Path) -> Iterator[dict[str, Any]]:
    """The lines of a state file; a last one that was cut off does not count."""
    for line in state.read_text().splitlines() if state.exists() else ():
        try:
            found: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        yield found


def summed(state: Path, results: Path = RESULTS) -> dict[str, Sums]:
    """The sums that are committed, with what the state file has beyond them."""
    sums: dict[str, Sums] = {}
    for kind, table in (tomllib.loads(results.read_text()) if results.exists() else {}).items():
        if "inputs" in table and "seeds" in table:
            figures = {name: table[name] for name in ("seeds", "tracebacks", "hangs", "slowest_s")}
            sums[kind] = Sums(reached=Counter(table["reached"]), **figures)
    for stretch in stretches(state):
        sums.setdefault(stretch["kind"], Sums()).add(stretch)
    return sums


def written(sums: dict[str, Sums], failing: Mapping[str, int]) -> str:
    """The text of `results.toml`. `failing` is the number of inputs of each kind's corpus that still fail."""
    out = ["# Inputs that were fuzzed, summed over runs: `tests/fuzz/run.py --results` adds what a state file has."]
    for kind, one in sorted(sums.items()):
        seeds = ", ".join(f'"{seed}" = {stop}' for seed, stop in sorted(one.seeds.items()))
        out += ["", f"[{kind}]", f"inputs = {one.inputs}", f"seeds = {{ {seeds} }}"]
        out += [f"tracebacks = {one.tracebacks}", f"hangs = {one.hangs}"]
        out += [f"still_failing = {failing.get(kind, 0)}", f"slowest_s = {one.slowest_s:.2f}"]
        out += ["", f"[{kind}.reached]", *(f'"{label}" = {n}' for label, n in sorted(one.reached.items()))]
    return "\n".join(out) + "\n"
