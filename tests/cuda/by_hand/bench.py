"""How long a step of an emitted program takes beside the one that was written by hand: `bench.py [PAIRS]`.

Steps in turn on this machine over gloo; the median ratio, and the upper end of a bootstrap's 95 %.
Writes docs/measured/by-hand.md.
"""

from __future__ import annotations

import random
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from planc.trainer.run.launch import run  # noqa: E402
from tests.rows import rows_of  # noqa: E402

PAGE = ROOT / "docs" / "measured" / "by-hand.md"
WORKER = Path(__file__).with_name("worker.py")
RESAMPLES = 10_000

HEAD = """# Emitted beside written by hand

Written by `tests/cuda/by_hand/bench.py`. Three programs written by hand with torch alone (`tests/cuda/by_hand/`) and
those that planc emits for the same layouts, on four gloo processes from the same weights: each issues the same
collectives, in the same order but for scalars (`tests/cuda/test_by_hand.py`). Steps were timed in turn, emitted and by
hand; the ratio is that of each pair, and the bound the upper end of a bootstrap's 95 % interval of the median.

| layout | pairs | emitted | by hand | median ratio | upper bound |
|---|--:|--:|--:|--:|--:|
"""


def main(pairs: int) -> int:
    finished = run([sys.executable, str(WORKER), str(pairs)], 4, timeout_s=1500)
    assert finished.ok, finished.outputs[finished.failed_rank or 0][-4000:]
    rows = rows_of(finished.outputs[0])
    text = HEAD + "".join(row_of(row["name"], row["seconds"]) for row in rows)
    PAGE.write_text(text)
    print(text)
    return 0


def row_of(name: str, seconds: list[list[float]]) -> str:
    ratios = [emitted / by_hand for emitted, by_hand in seconds]
    medians = [statistics.median(column) for column in zip(*seconds, strict=True)]
    shown = [f"{1e3 * s:.0f} ms" for s in medians]
    cells = (name, str(len(ratios)), *shown, f"{statistics.median(ratios):.3f}", f"{upper(ratios):.3f}")
    return f"| {' | '.join(cells)} |\n"


def upper(ratios: list[float]) -> float:
    """The 97.5th percentile of the medians of resamples, from a fixed seed."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return medians[int(0.975 * RESAMPLES)]


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 40))
