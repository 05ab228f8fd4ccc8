"""`planc crosscheck A.json B.json...`: compares the losses of runs, from the receipts that `planc train` writes."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from planc.cli.common import print_json, refused, width
from planc.diag.errors import PlanError
from planc.files import write_atomically


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("receipts", nargs="+", metavar="RECEIPT.json")
    parser.add_argument("--budget", type=float, metavar="NATS", help="largest difference of losses (1e-4 for fp32)")
    parser.add_argument("--plot", metavar="FILE.svg", help="draw the loss curves")


def run(options: argparse.Namespace) -> int:
    from planc.trainer.receipt.crosscheck import crosscheck
    from planc.trainer.receipt.crosscheck_text import picture, render
    from planc.trainer.receipt.receipt import read_receipt

    if len(options.receipts) < 2:
        print("planc crosscheck: two receipts or more are compared", file=sys.stderr)
        return 2
    try:
        receipts = [read_receipt(path) for path in options.receipts]
    except PlanError as error:
        refused(error.diagnostics, options.format)
        return 2
    result = crosscheck(receipts, options.budget)
    if options.plot:
        write_atomically(Path(options.plot), picture(receipts))
    if options.format == "json":
        print_json(result.to_json(), "planc.crosscheck/1")
    else:
        print(render(result, receipts, width()))
        if options.plot:
            print(f"curves: {options.plot}")
    return 0 if result.ok else 1
