"""Published seconds of a sync of weights beside predicted ones, and the page `docs/measured/sync-times.md`."""

from __future__ import annotations

import tempfile
import tomllib
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from planc.costing.weight_sync import sync_time
from planc.ir.sharding import Sharded
from planc.lowering import state_layout
from planc.sharding.transfers import transfer
from tests.plans import ROOT, sharded_of

SYNCS = Path(__file__).with_name("syncs.toml")
PAGE = ROOT / "docs" / "measured" / "sync-times.md"
HEAD = "# Published times of a sync of weights"
ABOUT = """
Seconds that were published for one transfer of a trainer's weights to an inference engine, beside two predictions: of
links alone, by the transfer plan of the same two layouts on its machine, apart, in bf16; and of links with one rate at
which such a program packs, launches and loads the bytes of the model, a tensor after the other, the median of the other
rows. The last column says why a figure cannot be compared. Sources: `tests/cost/syncs.toml`.
"""


class Predicted(NamedTuple):
    """A comparable row: its published seconds, predicted ones of the links, and the model's bytes."""

    published_s: float
    links_s: float
    model_bytes: float

    @property
    def bytes_per_s(self) -> float:
        """The model's bytes over the seconds that the links do not explain."""
        return self.model_bytes / (self.published_s - self.links_s)


def syncs() -> list[dict[str, Any]]:
    """Return the rows of `syncs.toml`."""
    rows: list[dict[str, Any]] = tomllib.loads(SYNCS.read_text())["sync"]
    return rows


def _layout(row: dict[str, Any], side: str) -> Sharded:
    text = f"plan side\nmodel {row['model']}\nbatch 4096 x 4096 tokens microbatch 1\ncluster {row['cluster']}\n"
    with tempfile.TemporaryDirectory() as folder:
        return sharded_of(Path(folder), f"{text}{row[side]}\ncompute bf16 reduce fp32\n")


@cache
def predicted() -> dict[int, Predicted]:
    """Return the comparable rows by their place in `syncs.toml`: in bf16, between two machines of their kind."""
    return {place: _predicted(row) for place, row in enumerate(syncs()) if "why" not in row}


def _predicted(row: dict[str, Any]) -> Predicted:
    trainer, generator = _layout(row, "trainer"), _layout(row, "generator")
    moved = transfer(trainer, generator, state_layout(trainer, None), colocated=False, wire_bytes=lambda _: 2.0)
    links_s = sync_time(moved, (trainer.plan.cluster, generator.plan.cluster)).seconds
    return Predicted((row["low_s"] + row["high_s"]) / 2, links_s, moved.model_bytes)


def program_s(place: int, rows: dict[int, Predicted]) -> float:
    """Return the predicted seconds of a row by the rate of the other `rows`."""
    rate = median(row.bytes_per_s for other, row in rows.items() if other != place)
    return rows[place].links_s + rows[place].model_bytes / rate


def ratios(rows: dict[int, Predicted]) -> list[float]:
    """Return predicted over published seconds of each of `rows`, by the rate of the others."""
    return [program_s(place, rows) / row.published_s for place, row in rows.items()]


def one_program() -> dict[int, Predicted]:
    """Return the comparable rows of the program that most of them are of."""
    return {place: row for place, row in predicted().items() if "NCCL-Xfer" in syncs()[place]["how"]}


def near(found: list[float]) -> int:
    """Return how many ratios are within 30 % of 1."""
    return sum(0.7 <= one <= 1.3 for one in found)


def page() -> str:
    """Return the text of the page."""
    found, own_rows = ratios(predicted()), ratios(one_program())
    lines = [HEAD, ABOUT, "| model | published s | links s | program s | ratio | what | not comparable because |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for place, row in enumerate(syncs()):
        low, high = row["low_s"], row["high_s"]
        published = f"{low}" if low == high else f"{low} to {high}"
        own = predicted().get(place)
        cells = ("", "", "")
        if own is not None:
            seconds = program_s(place, predicted())
            cells = (f"{own.links_s:.3f}", f"{seconds:.3f}", f"{seconds / own.published_s:.2f}")
        lines.append(f"| {row['model']} | {published} | {' | '.join(cells)} | {row['how']} | {row.get('why', '')} |")
    rates = sorted(row.bytes_per_s / 1e9 for row in predicted().values())
    return "\n".join(lines) + TAIL.format(
        near=near(found),
        count=len(found),
        low=min(found),
        high=max(found),
        own_near=near(own_rows),
        own=len(own_rows),
        slow=rates[0],
        usual=median(rates),
        fast=rates[-1],
    )


TAIL = """

{near} of the {count} comparable rows are met within 30 %, and all at {low:.2f} to {high:.2f}; of the {own} of one
program, by the rate of its other rows alone, {own_near}. A rate a byte cannot tell the others: the same publisher's two
programs differ by a factor of two on the same layouts, and Qwen3-4B's 8 GB take 0.07 to 0.15 s between machines of the
same size, longer where the trainer has tensor parallelism or few copies. The rates are {slow:.0f} to {fast:.0f} GB/s,
{usual:.0f} in the median, all of H100 nodes; `planc sync` gives the seconds of the three. On shared devices its three
are 6 to 18 GB/s, figures of slime and SkyRL whose layouts are not printed.
"""


if __name__ == "__main__":
    print(page())
