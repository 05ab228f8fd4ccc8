"""`planc import FILE...`: converts another system's configuration to a plan."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from planc.cli.common import exit_status, print_diagnostics, print_json, refused
from planc.cli.foreign import add_foreign, add_given, check_system, foreign_options
from planc.diag.errors import PlanError
from planc.files import write_atomically
from planc.interop.importing import Imported, import_files
from planc.picture.units import approximate


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `planc import` to `parser`."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="the files of one configuration")
    parser.add_argument("-o", "--output", metavar="PLAN", help="write the plan there, not to standard output")
    add_foreign(parser)
    parser.add_argument("--strict", action="store_true", help="refuse what a plan can say only nearly, or not at all")
    parser.add_argument(
        "--allow-code", action="store_true", help="run a launch script, walled off, to see what it starts"
    )
    parser.add_argument("--sources", action="store_true", help="comment the plan with all fields and defaults")
    add_given(parser)


def run(options: argparse.Namespace) -> int:
    """Convert the files in `options` to a plan, print or write it, and return the exit status."""
    if wrong := check_system(options.system):
        print(f"planc import: --from: {wrong}", file=sys.stderr)
        return 2
    files = [Path(file) for file in options.files]
    folder = Path(options.output).parent if options.output else files[0].parent
    try:
        imported = import_files(files, foreign_options(options, folder), options.system)
    except PlanError as error:
        with redirect_stdout(sys.stdout if options.format == "json" else sys.stderr):
            return refused(error.diagnostics, options.format)
    if imported.text and options.output:
        write_atomically(Path(options.output), imported.text)
    if options.format == "json":
        print_json(_json(imported), "planc.import/1")
    else:
        _show(imported, options.output)
    return exit_status(imported.diagnostics)


def _show(imported: Imported, output: str | None) -> None:
    """Print the plan, or a summary if it was written to `output`. Print the diagnostics to standard error."""
    if imported.text and not output:
        print(imported.text, end="")
    elif imported.text and imported.system:
        near = f", {approximate(imported.inexact)}" if imported.inexact else ""
        print(f"{output}: {imported.system.title} {imported.system.version}{near}\n{imported.chain}")
    if imported.diagnostics:
        with redirect_stdout(sys.stderr):
            print_diagnostics(imported.diagnostics, imported.sources)


def _json(imported: Imported) -> dict[str, Any]:
    fields = [
        {
            "setting": setting,
            "field": origin.name,
            "value": list(origin.value) if isinstance(origin.value, tuple) else origin.value,
            "given": origin.span is not None or origin.option,
            "file": origin.span.file if origin.span else None,
            "line": origin.span.line if origin.span else None,
        }
        for setting, origins in (imported.origins or {}).items()
        for origin in origins
    ]
    return {
        "system": imported.system.name if imported.system else None,
        "version": imported.system.version if imported.system else None,
        "text": imported.text or None,
        "batch": imported.chain or None,
        "inexact": list(imported.inexact),
        "fields": fields,
        "diagnostics": [d.to_json() for d in imported.diagnostics],
    }
