"""`planc bench speed`: how long planc itself takes, as ratios measured in one run.

Whole processes, in turn (A B A B ...), so that a machine whose speed drifts drifts for both.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from planc.cli.common import print_json
from planc.cli.views.table import table
from planc.driver import examine, load
from planc.picture.units import seconds

BASE = "import pydantic, lark"


def run(options: argparse.Namespace) -> int:
    """Measure, print the table, and return the exit status; `options` are those of `planc bench`."""
    runs = max(1, min(options.runs, 100))
    plans = files("planc.plans")
    plan = str(plans.joinpath("llama3_70b_h100.plan"))
    check, base = _paired(_check(plan), _process("-c", BASE), runs)
    large, small = _paired(_check(plan, "--set", "nodes=8192"), _check(plan, "--set", "nodes=8"), runs)
    with tempfile.TemporaryDirectory() as folder:
        long = _write_plan(folder, "long", LONG)
        sized = _write_plan(folder, "sized", SIZED)
        devices = {nodes * 8: _costing(sized, runs, nodes=nodes) for nodes in (1, 512, 131072)}
        figures = {
            "check_s": check,
            "import_s": base,
            "check_to_import": check / base,
            "check_64_devices_s": small,
            "check_65536_devices_s": large,
            "large_to_small": large / small,
            "check_in_process_s": _median(lambda: examine(plan), runs),
            "check_500_lines_s": _median(lambda: examine(long), runs),
            "cost_405b_s": _costing(str(plans.joinpath("field").joinpath("llama3_405b_8k.plan")), runs),
            **{f"cost_{n}_devices_s": s for n, s in devices.items()},
            "cost_devices_spread": max(devices.values()) / min(devices.values()),
        }
    if options.format == "json":
        print_json(figures, "planc.bench/1")
        return 0
    least = min(devices.values())
    rows = [
        ["check of the 70B plan, whole process", seconds(check), f"{check / base:.2f} x", f"python -c '{BASE}'"],
        ["the same on 65,536 devices", seconds(large), f"{large / small:.2f} x", "on 64 devices"],
        ["the same, warm, in process", seconds(figures["check_in_process_s"]), "", ""],
        ["check of 500 lines, warm", seconds(figures["check_500_lines_s"]), "", ""],
        ["costing 405B on 16,384 devices, warm", seconds(figures["cost_405b_s"]), "", ""],
        *(
            [
                f"costing 8B on {n:,} devices, warm",
                seconds(s),
                f"{s / least:.2f} x",
                "the fastest of these",
            ]
            for n, s in devices.items()
        ),
    ]
    print("\n".join(table(("median", "time", "ratio", "to"), rows, left=1, left_last=True)))
    return 0


SIZED = """plan sized
let       nodes = 1
model     llama3_8b
batch     nodes * 4 x 8192 tokens microbatch 1
cluster   nodes x h100_node
mesh      fsdp nodes * 4 > tp 2
use       fsdp over fsdp
use       tp over tp
use       sp over tp
compute   bf16 reduce fp32
recompute blocks
"""
LONG = SIZED + "".join(f"let       n{i} = nodes * {i} + {i}\n" for i in range(1, 490))


def _write_plan(folder: str, name: str, text: str) -> str:
    path = Path(folder, f"{name}.plan")
    path.write_text(text)
    return str(path)


def _costing(path: str, runs: int, **given: int) -> float:
    """Median seconds of propagation, collectives and cost of a loaded plan; nothing is kept between runs."""
    from planc.checks import assume_checked
    from planc.costing import cost_plan
    from planc.sharding.propagate import propagate

    plan = load(path, set=given)

    def call() -> None:
        sharded = propagate(assume_checked(replace(plan)))
        cost_plan(sharded)

    return _median(call, runs)


def _median(call: Callable[[], object], runs: int) -> float:
    """After one call that does not count."""
    call()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _check(plan: str, *words: str) -> Callable[[], float]:
    return _process("-P", "-m", "planc.cli", "check", plan, "--brief", *words)


def _process(*words: str) -> Callable[[], float]:
    """Seconds of one whole interpreter, which may keep compiled modules as an installed one does."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def call() -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True, env=kept)
        return time.perf_counter() - start

    return call


def _paired(one: Callable[[], float], other: Callable[[], float], runs: int) -> tuple[float, float]:
    """Medians of two measurements taken in turn, after one of each that does not count."""
    one(), other()
    pairs = [(one(), other()) for _ in range(runs)]
    return statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs)
