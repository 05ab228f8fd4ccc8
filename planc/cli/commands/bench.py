"""`planc bench`: speed and accuracy of planc itself. It needs a checkout, whose `tests/lab` measures them."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

from planc.cli.progress import Progress

ROOT = Path(__file__).resolve().parents[3]
TABLES = {
    "speed": "speed",
    "accuracy": "accuracy",
    "saves": "checkpoint",
    "calibrated": "calibrated",
    "search": "search",
    "published": "published",
    "accelerator": "accelerator",
    "large": "large",
}
"""Names of the benchmarks, and the module in tests/lab/bench of each."""
NO_LAB = """planc bench: the benches are in a checkout of planc (tests/lab), and this is an installed package.
In a checkout: `make test`, then `.venv/bin/planc bench`."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="?",
        choices=TABLES,
        default="speed",
        help="what to measure (speed)",
    )
    parser.add_argument("--rows", metavar="FILE", help="accuracy: runs of one's own, as in tests/lab/published/data")
    parser.add_argument("--runs", type=int, default=7, metavar="N", help="measured runs of each (7)")
    parser.add_argument("--hardware", metavar="FILE.plan", help="calibrated: what `planc calibrate` wrote")
    parser.add_argument(
        "--machine",
        default="cpu_local",
        metavar="NODE",
        help="calibrated: its node; accelerator --dry: as if it were here (cpu_local)",
    )
    parser.add_argument(
        "--devices", type=int, default=1, metavar="N", help="accelerator --dry: so many accelerators of --machine (1)"
    )
    parser.add_argument("--target", choices=("cuda", "xla"), help="calibrated: which stack")
    parser.add_argument("--minutes", type=float, default=9.0, metavar="M", help="accelerator: at most so long (9)")
    parser.add_argument(
        "--state", default="build/accelerator", metavar="FOLDER", help="accelerator: answers so far (build/accelerator)"
    )
    parser.add_argument("--dry", action="store_true", help="accelerator: predict every experiment, run none")
    parser.add_argument("--page", metavar="FILE.md", help="accelerator: write the answers as a page")


def run(options: argparse.Namespace) -> int:
    if not (ROOT / "tests" / "lab" / "bench").is_dir():
        print(NO_LAB, file=sys.stderr)
        return 2
    sys.path.insert(0, str(ROOT))  # the checkout's own `tests`, whatever folder planc is called in
    made = import_module(f"tests.lab.bench.{TABLES[options.what]}")
    with Progress("bench") as progress, progress.during(f"measuring {options.what}"):
        return int(made.run(options))
