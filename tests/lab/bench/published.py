"""`planc bench published`: layouts that people published beside the best that a search finds under their limits."""

from __future__ import annotations

import argparse
from importlib.resources import files
from pathlib import Path

from planc.cli.common import print_json
from planc.cli.views.table import table
from planc.diag.fast_dataclass import dataclass
from planc.driver import examine
from planc.picture.units import seconds
from planc.searching import search
from planc.searching.space import Space

PUBLISHED = {
    "gpt3_175b_a100": "gpt3_175b_a100",
    "megatron_530b_a100": "megatron_530b_a100",
    "megatron_1t_a100": "megatron_1t_a100",
    "llama3_405b_8k": "llama3_405b_h100",
    "deepseek_v3_h800": "deepseek_v3_h800",
}
"""Plans as published, under plans/field, and the same with their layout left free, under plans/search."""
HEAD = ("published", "step", "GiB", "best found", "GiB", "ratio", "layout found")


@dataclass(frozen=True)
class Beside:
    """A published layout's step beside the best found with its batch, its precision and at most its memory."""

    published_s: float
    published_gib: float
    best_s: float
    best_gib: float
    label: str

    @property
    def ratio(self) -> float:
        """Ratio of the published layout's time to that of the best found; below 1 it would not be in the space."""
        return self.published_s / self.best_s


def beside(name: str) -> Beside:
    """The published layout `name` (a bundled plan) and the best found under its limits, in s and GiB."""
    field, free = (Path(str(files("planc.plans").joinpath(folder))) for folder in ("field", "search"))
    costed = examine(field / f"{name}.plan").costed
    assert costed is not None, "a bundled plan has mistakes"
    gib = costed.memory.per_device_gib.total
    found = search(Space(free / f"{PUBLISHED[name]}.plan"), top=1, memory_gib=gib).best[0]
    return Beside(costed.step.time_s, gib, found.time_s, found.memory_gib, found.label)


def run(options: argparse.Namespace) -> int:
    """Print the table, or with `options.format` json its numbers (s, GiB, ratios). Always 0."""
    every = {name: beside(name) for name in PUBLISHED}
    if options.format == "json":
        facts = ("published_s", "published_gib", "best_s", "best_gib", "label", "ratio")
        print_json(
            {name: {fact: getattr(b, fact) for fact in facts} for name, b in every.items()}, "planc.bench.published/1"
        )
        return 0
    rows = [
        (
            name,
            seconds(b.published_s),
            f"{b.published_gib:.1f}",
            seconds(b.best_s),
            f"{b.best_gib:.1f}",
            f"{b.ratio:.3f}",
            b.label,
        )
        for name, b in every.items()
    ]
    print("\n".join(table(HEAD, rows, left=1, left_last=True)))
    return 0
