"""Published seconds of a sync of weights beside predicted ones, and the page `docs/measured/sync-times.md`."""

from __future__ import annotations

import tempfile
import tomllib
from pathlib import Path
from typing import Any

from planc.costing.weight_sync import sync_time
from planc.ir.sharding import Sharded
from planc.lowering import state_layout
from planc.sharding.transfers import transfer
from tests.plans import ROOT, sharded_of

SYNCS = Path(__file__).with_name("syncs.toml")
PAGE = ROOT / "docs" / "measured" / "sync-times.md"
HEAD = "# Published times of a sync of weights"
ABOUT = """
Seconds that were published for one transfer of a trainer's weights to an inference engine, beside what the
transfer plan of the same two layouts takes on its machine, apart, in bf16. The last column
says why a figure cannot be compared. A figure of a program has launches, packing and loading in it; the prediction has
links only. Sources: `tests/cost/syncs.toml`.
"""


def syncs() -> list[dict[str, Any]]:
    """Return the rows of `syncs.toml`."""
    rows: list[dict[str, Any]] = tomllib.loads(SYNCS.read_text())["sync"]
    return rows


def _layout(row: dict[str, Any], side: str) -> Sharded:
    text = f"plan side\nmodel {row['model']}\nbatch 4096 x 4096 tokens microbatch 1\ncluster {row['cluster']}\n"
    with tempfile.TemporaryDirectory() as folder:
        return sharded_of(Path(folder), f"{text}{row[side]}\ncompute bf16 reduce fp32\n")


def predicted_s(row: dict[str, Any]) -> float:
    """Return the predicted seconds of a row with layouts: in bf16, between two machines of its kind."""
    trainer, generator = _layout(row, "trainer"), _layout(row, "generator")
    moved = transfer(trainer, generator, state_layout(trainer, None), colocated=False, wire_bytes=lambda _: 2.0)
    return sync_time(moved, (trainer.plan.cluster, generator.plan.cluster)).seconds


def ratio(row: dict[str, Any]) -> float:
    """Return the predicted seconds of a row over the middle of its published range."""
    return predicted_s(row) / ((row["low_s"] + row["high_s"]) / 2)


def page() -> str:
    """Return the text of the page."""
    lines = [HEAD, ABOUT, "| model | published s | predicted s | ratio | what | not comparable because |"]
    lines += ["|---|---|---|---|---|---|"]
    for row in syncs():
        low, high = row["low_s"], row["high_s"]
        published = f"{low}" if low == high else f"{low} to {high}"
        found = ("", "") if "why" in row else (f"{predicted_s(row):.3f}", f"{ratio(row):.2f}")
        lines.append(f"| {row['model']} | {published} | {' | '.join(found)} | {row['how']} | {row.get('why', '')} |")
    return "\n".join(lines) + "\n"
