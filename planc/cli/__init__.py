"""The command line: commands, arguments and exit status. Only the module of the called command is imported.

Exit status: 0 success; 1 a negative answer (errors, differences, over budget); 2 usage error or unreadable input; 75
stopped on request, with everything saved; 130 interrupted by Ctrl-C.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

from planc.cli.commands import load_command

COMMANDS: dict[str, str] = {
    "init": "a plan for a model and a cluster, with what matters left to the search",
    "check": "check and cost plans: memory, step time, collectives, mistakes",
    "cost": "the report of one plan",
    "search": "the best layouts for what a plan leaves free with `?`",
    "diff": "what changes from one plan to another",
    "sweep": "a plan at many values of one number",
    "place": "the order of mesh axes, and of devices, that is fastest on a plan's machine",
    "import": "another system's configuration as a plan",
    "export": "a plan as another system's configuration",
    "lower": "write the program of a plan for cuda or xla",
    "sync": "what moves when a generator receives its trainer's weights, and how long it takes",
    "audit": "what a program moves, beside what its plan predicts",
    "fmt": "write plans the one way",
    "expand": "show the sentences that a plan's shorthands stand for",
    "graph": "a plan's machine as a graph of links, for other tools too",
    "explain": "the manual page of a code, or the list of codes",
    "embed": "write a compiled plan into a training preset",
    "train": "train a preset with the bundled trainer",
    "weights": "write a checkpoint's parameters in Hugging Face's format",
    "calibrate": "measure this machine and write its hardware file",
    "crosscheck": "compare the losses of two or more receipts",
    "report": "a plan as one page, with pictures; its step as a trace",
    "lsp": "the language server, for editors",
    "completion": "the script that completes planc's commands in a shell",
    "bench": "how long planc itself takes, as ratios",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv` (default: `sys.argv`) and return its exit status."""
    try:
        return _run(list(sys.argv[1:] if argv is None else argv), argparse.Namespace(command=None))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except MemoryError:
        print("planc: not enough memory", file=sys.stderr)
        return 2


def _run(words: list[str], options: argparse.Namespace) -> int:
    try:
        if not _open_streams():
            return 2
        words = [*words[1:], "--help"] if words[:1] == ["help"] else words
        parser = _parser(words)
        parser.parse_args(words, options)
        if options.command is None:
            parser.print_help()
            return 2
        status: int = load_command(options.command).run(options)
        sys.stdout.flush()
        return status
    except ModuleNotFoundError as error:
        return _not_installed(error, options)
    except BrokenPipeError:
        _discard_output()
        return 1
    except OSError as error:
        _discard_output()
        where = f"{error.filename}: " if error.filename else ""
        print(f"{_called(options)}: {where}{error.strerror or error}", file=sys.stderr)
        return 2


def _called(options: argparse.Namespace) -> str:
    return f"planc {options.command}" if options.command else "planc"


def _not_installed(error: ModuleNotFoundError, options: argparse.Namespace) -> int:
    """Report E1009 if the missing module belongs to a framework. Any other one is a bug: the error is raised again."""
    from planc.cli.common import refused
    from planc.diag.span import Span
    from planc.ir.installed import FRAMEWORKS, missing_framework
    from planc.ir.target import Target

    if (error.name or "").partition(".")[0] not in FRAMEWORKS:
        raise error
    target: Target = getattr(options, "target", None) or "cuda"
    file = str(getattr(options, "preset", None) or getattr(options, "file", None) or f"planc {options.command}")
    return refused(missing_framework(error, target, Span(file, 1, 1, 1, 1)).diagnostics, options.format)


def _open_streams() -> bool:
    """False if standard output is closed. A closed standard error is replaced by a buffer. What is printed is UTF-8,
    whatever the environment says."""
    if sys.stderr is None:
        sys.stderr = io.StringIO()
    if sys.stdout is None:
        print("planc: standard output is closed", file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    return sys.stdout is not None


def _discard_output() -> None:
    """Redirect standard output to null, so that the interpreter does not fail to flush it on exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Version(argparse.Action):
    """The option `--version`, which prints the version and the commit."""

    def __init__(self, version: str, **options: Any) -> None:
        super().__init__(nargs=0, help="show the version and the commit, and exit", **options)
        self.version = version

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from planc.cli.commit import commit

        of = f" (commit {found[:12]})" if (found := commit()) else ""
        print(f"planc {self.version}{of}")
        parser.exit()


def whole_parser() -> argparse.ArgumentParser:
    """Return the argument parser with all commands, each with its arguments."""
    return _parser([], every=True)


def _parser(words: list[str], *, every: bool = False) -> argparse.ArgumentParser:
    """Return the parser. Only the called command has its arguments, unless `every`: the others are not imported."""
    from planc.version import __version__

    parser = argparse.ArgumentParser(prog="planc", description="a compiler for sharding plans")
    parser.add_argument("--version", action=_Version, version=__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    called = next((w for w in words if not w.startswith("-")), "")
    if called and called not in COMMANDS:
        from planc.cli.common import did_you_mean

        choices = did_you_mean(called, COMMANDS) or f"one of {', '.join(COMMANDS)}"
        parser.error(f"`{called}` is not a command; {choices}")
    for name, about in COMMANDS.items():
        command = commands.add_parser(name, help=about, description=about)
        command.add_argument("--format", choices=_formats(name), default="text", help="how to print")
        if every or name == called:
            load_command(name).arguments(command)
    return parser


def _formats(command: str) -> tuple[str, ...]:
    more = {"check": ("concise", "sarif", "github"), "diff": ("markdown",)}
    return ("text", "json", *more.get(command, ()))
