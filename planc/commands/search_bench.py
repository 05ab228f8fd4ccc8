"""`planc bench search`: three large spaces, each searched once."""

from __future__ import annotations

import argparse
from importlib.resources import files
from pathlib import Path

from planc.commands.common import print_json
from planc.commands.report_text import seconds
from planc.commands.table import table
from planc.search import Found, search

SPACES = {"turing_530b_a100": 2520, "llama3_405b_h100": None, "deepseek_v3_h800": None}
"""Plans under plans/search, and the largest batch where it is free."""
HEAD = ("space", "decided", "costed", "time", "decided/s", "costed/s", "best step", "layout")


def run(options: argparse.Namespace) -> int:
    folder = Path(str(files("planc.plans").joinpath("search")))
    found = {name: search(folder / f"{name}.plan", most_sequences=most) for name, most in SPACES.items()}
    if options.format == "json":
        print_json({name: _figures(f) for name, f in found.items()})
        return 0
    rows = [
        [
            name,
            f"{f.decided:,}",
            f"{f.fully_costed:,}",
            seconds(f.seconds),
            f"{f.decided / f.seconds:,.0f}",
            f"{f.fully_costed / f.seconds:,.0f}",
            seconds(f.best[0].time_s),
            f.best[0].label,
        ]
        for name, f in found.items()
    ]
    print("\n".join(table(HEAD, rows, left=1, left_last=True)))
    return 0


def _figures(found: Found) -> dict[str, float]:
    return {
        "decided": found.decided,
        "fully_costed": found.fully_costed,
        "seconds": found.seconds,
        "best_step_s": found.best[0].time_s,
    }
