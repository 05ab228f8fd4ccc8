"""`planc lower FILE --target cuda|xla`: writes the program of a plan."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from planc.cli.common import add_set, add_target, print_json, refused
from planc.diag.diagnostic import Diagnostic
from planc.diag.errors import PlanError
from planc.diag.quoting import printable
from planc.driver import known_version, lower_and_examine
from planc.files import first_word, write_atomically
from planc.ir.report import Report
from planc.lowering import RUNTIMES

LAUNCHERS = ("torchrun", "slurm", "k8s", "jobset", "xpk", "skypilot")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("-o", "--output", metavar="PATH", help="write here instead of standard output")
    parser.add_argument("--emit", choices=("python", "json"), default="python", help="the text, or text and sums")
    parser.add_argument("--launch", choices=LAUNCHERS, help="write what starts the ranks instead")
    parser.add_argument("--runtime", choices=("torch", "jax", "torch_xla"), default="", help="jax or torch_xla for xla")
    parser.add_argument("--torch", metavar="VERSION", default="", help="write for this torch, like 2.11 (cuda)")
    parser.add_argument("--jax", metavar="VERSION", default="", help="write for this JAX, like 0.11 (xla)")
    add_target(parser, required=True)
    add_set(parser)


def run(options: argparse.Namespace) -> int:
    if options.runtime and options.runtime not in RUNTIMES[options.target]:
        runs_on = " or ".join(RUNTIMES[options.target])
        print(f"planc lower: the {options.target} target runs on {runs_on}", file=sys.stderr)
        return 2
    runtime = options.runtime or RUNTIMES[options.target][0]
    asked = {"torch": options.torch, "jax": options.jax}
    if others := [name for name, version in asked.items() if version and name != runtime]:
        print(f"planc lower: --{others[0]} is a version of another runtime than {runtime}", file=sys.stderr)
        return 2
    try:
        known_version(options.target, options.runtime, asked.get(runtime, ""))
    except ValueError as error:
        print(f"planc lower: {error}", file=sys.stderr)
        return 2
    if first_word(Path(options.file)) == "serve":
        return _lower_serve(options, runtime)
    as_json = options.emit == "json" or options.format == "json"
    try:
        program, examined = lower_and_examine(
            options.file,
            options.target,
            set=dict(options.set),
            runtime=options.runtime,
            version=asked.get(runtime, ""),
        )
    except PlanError as error:
        return refused(error.diagnostics, "json" if as_json else "text")
    _warn(examined.report.diagnostics)
    if options.launch and options.launch not in program.backend.launchers:
        known = ", ".join(program.backend.launchers) or "none"
        print(f"planc lower: --launch {options.launch} is not of this target; there are: {known}", file=sys.stderr)
        return 2
    try:
        full = _fills_memory(examined.report)
        text = program.backend.launch_file(program.plan, options.launch, full) if options.launch else program.text
    except ValueError as error:
        print(f"planc lower: --launch {options.launch}: {error}", file=sys.stderr)
        return 2
    if options.output:
        path = Path(options.output)
        write_atomically(path, text)
        if not as_json:
            print(f"{path}: {len(text.splitlines())} lines for {options.launch or options.target}")
    if as_json:
        print_json({**program.to_json(), **({"launch": text} if options.launch else {})}, "planc.program/1")
    elif not options.output:
        print(text, end="")
    return 0


def _lower_serve(options: argparse.Namespace, runtime: str) -> int:
    """Write the module with `sync` of a serve plan. Return the exit status."""
    from planc.driver.serving import lower_serve

    if options.launch or options.emit == "json" or options.format == "json" or runtime == "torch_xla":
        print("planc lower: a serve plan has one text, for torch or jax, and nothing that launches it", file=sys.stderr)
        return 2
    try:
        text, examined = lower_serve(options.file, options.target, set=dict(options.set))
    except PlanError as error:
        return refused(error.diagnostics, "text")
    _warn(examined.report.diagnostics)
    if examined.report.sync is not None and examined.report.sync.changed_s is not None:
        print("warning: the program sends all weights at every sync, not the changed elements alone", file=sys.stderr)
    if options.output:
        write_atomically(Path(options.output), text)
        print(f"{options.output}: {len(text.splitlines())} lines for {options.target}")
    else:
        print(text, end="")
    return 0


FULL = 0.85
"""Share of a device's memory above which the launch file tunes the allocator against fragmentation."""


def _fills_memory(report: Report) -> bool:
    memory = report.memory
    return memory is not None and memory.worst.per_device_gib.total > FULL * memory.capacity_gib


def _warn(diagnostics: tuple[Diagnostic, ...]) -> None:
    """Warn on standard error if the plan does not fit; the program is written anyway."""
    for d in diagnostics:
        if d.severity == "error":
            print(f"warning: {d.code} {printable(f'{d.span.where()}: {d.message}')}", file=sys.stderr)
