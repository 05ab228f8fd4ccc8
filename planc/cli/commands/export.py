"""`planc export PLAN --to SYSTEM`, or `--onto SCRIPT`: the plan as a config file of another system."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from planc.cli.common import number_setting, print_diagnostics, print_json, refused
from planc.cli.foreign import add_given
from planc.diag.errors import PlanError
from planc.diag.quoting import printable
from planc.files import write_atomically
from planc.picture.units import counted

if TYPE_CHECKING:
    from planc.interop.onto import Patched

WRITTEN = ("torchtitan", "megatron", "bridge", "deepspeed", "accelerate", "maxtext", "automodel")
"""Systems whose files planc can write."""
ONTO = "megatron"
"""The system whose scripts planc can change."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `planc export` to `parser`."""
    parser.add_argument("file", metavar="PLAN")
    parser.add_argument("--to", choices=WRITTEN, metavar="SYSTEM", help=", ".join(WRITTEN))
    parser.add_argument("--onto", metavar="SCRIPT", help="your own Megatron-LM script, whose flags become the plan's")
    parser.add_argument("-o", "--output", metavar="FILE", help="write there, not to standard output")
    parser.add_argument("--ignore", action="append", default=[], metavar="FIELD", help="a field that changes nothing")
    add_given(parser, "a number that `let` names, or with --onto the value of a field that the script leaves open")


def run(options: argparse.Namespace) -> int:
    """Write the config file of another system as `options` say, and return the exit status."""
    from planc.driver import load
    from planc.interop.exporting import export_plan
    from planc.interop.systems import systems

    if bool(options.to) == bool(options.onto):
        print("planc export: one of --to SYSTEM and --onto SCRIPT is needed", file=sys.stderr)
        return 2
    options.to = options.to or ONTO
    if options.to not in systems() or systems()[options.to].text is None:
        print(f"planc export: --to {options.to}: planc does not write its files yet", file=sys.stderr)
        return 2
    patched = None
    try:
        numbers = {} if options.onto else dict(number_setting("=".join(pair)) for pair in options.set)
        plan = load(options.file, set=numbers)
        exported = export_plan(plan, options.to)
        if options.onto:
            from planc.interop.onto import onto_script
            from planc.interop.values import Options

            given, folder = dict(options.set), Path(options.file).parent
            open_answers = Options(given=given, folder=folder, ignored=tuple(options.ignore), approximate=True)
            patched = onto_script(plan, exported, Path(options.onto), open_answers)
    except argparse.ArgumentTypeError as error:
        print(f"planc export: argument --set: {error}", file=sys.stderr)
        return 2
    except PlanError as error:
        return refused(error.diagnostics, options.format)
    if told := (*exported.diagnostics, *(patched.diagnostics if patched else ())):
        with redirect_stdout(sys.stderr):
            print_diagnostics(told)
    text = patched.text if patched else exported.text
    if options.output:
        write_atomically(Path(options.output), text)
    if options.format == "json":
        fields = {k: list(v) if isinstance(v, tuple) else v for k, v in exported.fields.items()}
        version = exported.system.version
        print_json(
            {
                "system": options.to,
                "version": version,
                "fields": fields,
                "beside": dict(exported.beside),
                "text": text,
                "changes": [change.text for change in patched.changes] if patched else [],
            },
            "planc.export/1",
        )
        return 0
    if not options.output:
        print(text, end="")
    if patched:
        _show(patched, options)
    elif options.output:
        print(f"{options.output}: {exported.system.title} {exported.system.version}")
    if exported.beside:
        words = " ".join(f"--{name} {value}" for name, value in exported.beside.items())
        print(f"{exported.system.title} takes these elsewhere than in its file: {words}", file=sys.stderr)
    return 0


def _show(patched: Patched, options: argparse.Namespace) -> None:
    """Print the changes of the script, to standard error if its text goes to standard output."""
    with redirect_stdout(sys.stdout if options.output else sys.stderr):
        print(f"{printable(options.output or options.onto)}: {counted(len(patched.changes), 'flag')} changed")
        for change in patched.changes:
            print(f"  {change.text}")
