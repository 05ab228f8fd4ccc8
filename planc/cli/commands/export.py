"""`planc export PLAN --to SYSTEM`: the plan as a config file of another system."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from pathlib import Path

from planc.cli.common import add_set, print_diagnostics, print_json, refused
from planc.diag.errors import PlanError
from planc.files import write_atomically

WRITTEN = ("torchtitan", "megatron", "bridge", "deepspeed", "accelerate", "maxtext", "automodel")
"""Systems whose files planc can write."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `planc export` to `parser`."""
    parser.add_argument("file", metavar="PLAN")
    parser.add_argument("--to", required=True, choices=WRITTEN, metavar="SYSTEM", help=", ".join(WRITTEN))
    parser.add_argument("-o", "--output", metavar="FILE", help="write there, not to standard output")
    add_set(parser)


def run(options: argparse.Namespace) -> int:
    """Write the config file of another system as `options` say, and return the exit status."""
    from planc.driver import load
    from planc.interop.exporting import export_plan
    from planc.interop.systems import systems

    if options.to not in systems() or systems()[options.to].text is None:
        print(f"planc export: --to {options.to}: planc does not write its files yet", file=sys.stderr)
        return 2
    try:
        exported = export_plan(load(options.file, set=dict(options.set)), options.to)
    except PlanError as error:
        return refused(error.diagnostics, options.format)
    if exported.diagnostics:
        with redirect_stdout(sys.stderr):
            print_diagnostics(exported.diagnostics)
    if options.output:
        write_atomically(Path(options.output), exported.text)
    if options.format == "json":
        fields = {k: list(v) if isinstance(v, tuple) else v for k, v in exported.fields.items()}
        version = exported.system.version
        print_json(
            {
                "system": options.to,
                "version": version,
                "fields": fields,
                "beside": dict(exported.beside),
                "text": exported.text,
            },
            "planc.export/1",
        )
    elif options.output:
        print(f"{options.output}: {exported.system.title} {exported.system.version}")
    else:
        print(exported.text, end="")
    if exported.beside and options.format != "json":
        words = " ".join(f"--{name} {value}" for name, value in exported.beside.items())
        print(f"{exported.system.title} takes these elsewhere than in its file: {words}", file=sys.stderr)
    return 0
