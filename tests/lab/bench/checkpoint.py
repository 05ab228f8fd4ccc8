"""`planc bench saves`: what training waits for a checkpoint of the tiny preset, on each stack."""

from __future__ import annotations

import argparse

from planc.cli.common import print_json
from planc.cli.views.table import table
from planc.ir.target import Target
from planc.picture.units import seconds

TARGETS: tuple[Target, ...] = ("cuda", "xla")
HEAD = ("target", "synchronous", "asynchronous", "ratio", "step", "step while saving")


def run(options: argparse.Namespace) -> int:
    from tests.lab.measure.checkpoint_bench import measure

    found = {target: measure(target, max(1, min(options.runs, 100))) for target in TARGETS}
    if options.format == "json":
        print_json(
            {t: {**f, "ratio": f["asynchronous_s"] / f["synchronous_s"]} for t, f in found.items()},
            "planc.bench.saves/1",
        )
        return 0
    rows = [
        [
            target,
            seconds(f["synchronous_s"]),
            seconds(f["asynchronous_s"]),
            f"{100 * f['asynchronous_s'] / f['synchronous_s']:.1f} %",
            seconds(f["step_s"]),
            seconds(f["step_while_saving_s"]),
        ]
        for target, f in found.items()
    ]
    print("\n".join(table(HEAD, rows, left=1)))
    return 0
