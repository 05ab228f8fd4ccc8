"""`planc bench search`: large spaces, the least CPU seconds of a few searches of each; and layouts of the space costed
one after the other, without any bound."""

from __future__ import annotations

import argparse
import time
from importlib.resources import files
from pathlib import Path

from planc.cli.common import print_json
from planc.cli.views.table import table
from planc.ir.garbage import gc_paused
from planc.picture.units import seconds
from planc.pipeline.timeline import clear_caches
from planc.searching import Found, every, search
from planc.searching.space import Space

SPACES: dict[str, int | None] = {
    "gpt3_175b_a100": None,
    "turing_530b_a100": 2520,
    "llama3_405b_h100": None,
    "llama3_405b_any_order": None,
    "deepseek_v3_h800": None,
}
"""Plans under plans/search, and the largest batch where it is free."""
RUNS = 3
"""Searches of each space; they find the same. The quickest is the least disturbed one."""
COSTED_ALONE = 25_000
"""Layouts that are costed one after the other: all of a space, or as many at most, spread over it."""
HEAD = ("space", "decided", "costed", "CPU time", "decided/s", "costed/s without bounds", "best step", "layout")


def run(options: argparse.Namespace) -> int:
    folder = Path(str(files("planc.plans").joinpath("search")))
    found = {name: _fastest_run(folder / f"{name}.plan", most) for name, most in SPACES.items()}
    rates = {name: _rate(folder / f"{name}.plan", most) for name, most in SPACES.items()}
    if options.format == "json":
        print_json(
            {name: _metrics(f, cpu_s, rates[name]) for name, (f, cpu_s) in found.items()}, "planc.bench.search/1"
        )
        return 0
    rows = [
        [
            name,
            f"{f.decided:,}",
            f"{f.fully_costed:,}",
            seconds(cpu_s),
            f"{f.decided / cpu_s:,.0f}",
            f"{rates[name]:,.0f}",
            seconds(f.best[0].time_s),
            f.best[0].label,
        ]
        for name, (f, cpu_s) in found.items()
    ]
    print("\n".join(table(HEAD, rows, left=1, left_last=True)))
    return 0


def _fastest_run(path: Path, most_sequences: int | None) -> tuple[Found, float]:
    """Result of a search and the least CPU seconds of several cold runs."""
    least = float("inf")
    for _ in range(RUNS):
        clear_caches()
        begin = time.process_time()
        found = search(Space(path, None, most_sequences))
        least = min(least, time.process_time() - begin)
    return found, least


def _rate(path: Path, most_sequences: int | None) -> float:
    """Layouts costed in a CPU second, with the figures and the orders of pipelines that are found on the way."""
    space = Space(path, None, most_sequences)
    clear_caches()
    with gc_paused():
        begin = time.process_time()
        count = sum(1 for _ in every(space, COSTED_ALONE))
        return count / (time.process_time() - begin)


def _metrics(found: Found, cpu_s: float, rate: float) -> dict[str, float]:
    return {
        "decided": found.decided,
        "fully_costed": found.fully_costed,
        "seconds": found.seconds,
        "cpu_s": cpu_s,
        "costed_per_s_without_bounds": rate,
        "best_step_s": found.best[0].time_s,
    }
