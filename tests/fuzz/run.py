"""`make fuzz`: check many damaged plans in one process. Whatever a file holds ends in a report.

Prints its seed and where it stopped; `--seed S --start I` goes on from there, or repeats one input. Every
input that breaks a promise is kept under runs/fuzz/ with what happened.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from planc.checks import rules  # noqa: E402
from planc.diag.edits import apply_edits  # noqa: E402
from planc.diag.text import render  # noqa: E402
from planc.driver import examine  # noqa: E402
from tests.fuzz.inputs import make  # noqa: E402

FOLDER = ROOT / "runs" / "fuzz"
TWICE = 50
"""Every so many inputs are checked twice: the answers must be equal."""


def promise(path: Path, data: bytes, *, twice: bool) -> Counter[str]:
    """Check one input. Raises AssertionError, or whatever planc raised, when a promise is broken."""
    path.write_bytes(data)
    checked = examine(path)
    report = checked.report
    answer = json.dumps(report.to_json(), allow_nan=False)
    assert report.step is not None or report.diagnostics, "neither a cost nor a finding"
    for d in report.diagnostics:
        assert d.code in rules(), f"{d.code} has no page"
        assert d.span.line >= 1 and d.span.column >= 1 and d.message, d
        if d.fix is not None:
            text = data.decode("utf-8-sig")
            assert apply_edits(text, d.fix.edits) != text, f"the edit of {d.code} changes nothing"
    render(report.diagnostics, checked.sources)
    if twice:
        assert answer == json.dumps(examine(path).report.to_json(), allow_nan=False), "two answers differ"
    return Counter({d.code for d in report.diagnostics} or {"costed"})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="the first input")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    options = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / "input.plan"
    seen: Counter[str] = Counter()
    broken = 0
    begin, slowest = time.monotonic(), (0.0, 0)
    index = options.start
    while index < options.start + options.count and time.monotonic() - begin < options.seconds:
        data, start = make(options.seed, index), time.monotonic()
        try:
            seen += promise(path, data, twice=index % TWICE == 0)
        except Exception:
            broken += 1
            (FOLDER / f"{options.seed}_{index}.plan").write_bytes(data)
            (FOLDER / f"{options.seed}_{index}.txt").write_text(traceback.format_exc())
            print(f"input {index}: {traceback.format_exc().strip().splitlines()[-1]}", flush=True)
        slowest = max(slowest, (time.monotonic() - start, index))
        index += 1
    done = index - options.start
    print(f"seed {options.seed}: inputs {options.start} to {index - 1}, {done:,} in {time.monotonic() - begin:.0f} s")
    print(f"slowest {slowest[0]:.2f} s (input {slowest[1]}); {broken} broken promises")
    print(", ".join(f"{code} {n}" for code, n in sorted(seen.items())))
    print(f"go on with --seed {options.seed} --start {index}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
