"""`planc bench`: how long planc itself takes, as ratios measured in one run.

Whole processes, in turn (A B A B ...), so that a machine whose speed drifts drifts for both.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.resources import files

from planc.commands.common import print_json
from planc.commands.report_text import seconds
from planc.commands.table import table

BASE = "import pydantic, lark"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=7, metavar="N", help="measured runs of each (7)")


def run(options: argparse.Namespace) -> int:
    runs = max(1, min(options.runs, 100))
    plan = str(files("planc.plans").joinpath("llama3_70b_h100.plan"))
    check, base = _paired(_check(plan), _process("-c", BASE), runs)
    large, small = _paired(_check(plan, "--set", "nodes=8192"), _check(plan, "--set", "nodes=8"), runs)
    costed = _in_process(plan, runs)
    figures = {
        "check_s": check,
        "import_s": base,
        "check_to_import": check / base,
        "check_64_devices_s": small,
        "check_65536_devices_s": large,
        "large_to_small": large / small,
        "check_in_process_s": costed,
    }
    if options.format == "json":
        print_json(figures)
        return 0
    rows = [
        ["check of the 70B plan, whole process", seconds(check), f"{check / base:.2f} x", f"python -c '{BASE}'"],
        ["the same on 65,536 devices", seconds(large), f"{large / small:.2f} x", "on 64 devices"],
        ["the same, warm, in process", seconds(costed), "", ""],
    ]
    print("\n".join(table(("median", "time", "ratio", "to"), rows, left=1, left_last=True)))
    return 0


def _check(plan: str, *words: str) -> Callable[[], float]:
    return _process("-m", "planc.cli", "check", plan, "--brief", *words)


def _process(*words: str) -> Callable[[], float]:
    """Seconds of one whole interpreter."""

    def call() -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - start

    return call


def _paired(one: Callable[[], float], other: Callable[[], float], runs: int) -> tuple[float, float]:
    """Medians of two measurements taken in turn, after one of each that does not count."""
    one(), other()
    pairs = [(one(), other()) for _ in range(runs)]
    return statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs)


def _in_process(plan: str, runs: int) -> float:
    """Median seconds of `planc.check` once everything is loaded."""
    from planc.driver import check

    def call() -> float:
        start = time.perf_counter()
        check(plan)
        return time.perf_counter() - start

    call()
    return statistics.median(call() for _ in range(runs))
