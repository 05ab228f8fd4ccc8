"""`planc weights PRESET.toml FOLDER`: exports a checkpoint's parameters as safetensors files that transformers can
read."""

from __future__ import annotations

import argparse

from planc.cli.common import print_json, refused
from planc.cli.progress import Progress
from planc.diag.errors import PlanError
from planc.diag.quoting import printable


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("preset", metavar="PRESET.toml")
    parser.add_argument("folder", metavar="FOLDER", help="where to write; made when absent")
    parser.add_argument("--checkpoint", metavar="DIR", help="the run's folder, rather than the preset's")
    parser.add_argument("--step", type=int, default=-1, metavar="N", help="of this step rather than the newest")


def run(options: argparse.Namespace) -> int:
    from planc.trainer.checkpoint.export_weights import export

    try:
        with Progress("weights") as progress, progress.during(printable(f"writing {options.folder}")):
            path = export(options.preset, options.folder, checkpoint=options.checkpoint, step=options.step)
    except PlanError as error:
        return refused(error.diagnostics, options.format)
    if options.format == "json":
        print_json({"folder": options.folder, "checkpoint": path.name}, "planc.weights/1")
    else:
        print(f"{options.folder}: the parameters of {path.name}")
    return 0
