"""`planc completion SHELL`: prints a script for completion of planc's commands and options in bash, zsh or fish."""

from __future__ import annotations

import argparse

from planc.cli.common import print_json
from planc.cli.completion import SHELLS, commands_of


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=sorted(SHELLS), metavar="SHELL", help="bash, zsh or fish")


def run(options: argparse.Namespace) -> int:
    from planc.cli import COMMANDS, whole_parser

    script = "\n".join(SHELLS[options.shell](commands_of(whole_parser(), COMMANDS)))
    if options.format == "json":
        print_json({"shell": options.shell, "script": script}, "planc.completion/1")
    else:
        print(script)
    return 0
