"""What commands share: arguments of plans, the terminal, printing diagnostics and JSON."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from planc.diag.diagnostic import Diagnostic
from planc.diag.span import Source


def add_set(parser: argparse.ArgumentParser, flag: str = "--set", help: str = "change a param of the plan") -> None:
    """`--set NAME=NUMBER`, as often as wanted."""
    parser.add_argument(flag, action="append", default=[], type=_setting, metavar="NAME=N", help=help)


def add_target(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument("--target", choices=("cuda", "xla"), required=required, help="which stack")


def _setting(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    if not name or not (value.isascii() and value.isdigit()) or len(value) > 15:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=NUMBER")
    return name, int(value)


def colour() -> bool:
    """Whether standard output wants colour: a terminal, and NO_COLOR unset."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def width() -> int:
    """Columns of the terminal; 100 when there is none."""
    return shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 100


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def print_diagnostics(diagnostics: Sequence[Diagnostic], sources: Mapping[str, Source] | None = None) -> None:
    """To standard output, with the places quoted where the files can be read."""
    from planc.diag.text import render, summary

    texts = dict(sources or {})
    for d in diagnostics:
        for span in (d.span, *(r.span for r in d.related)):
            if span.file not in texts and (source := _readable(span.file)) is not None:
                texts[span.file] = source
    print(render(diagnostics, texts, width=width(), colour=colour()))
    print(f"\n{summary(diagnostics)}")


def _readable(file: str) -> Source | None:
    try:
        return Source.of(file, Path(file).read_text())
    except (OSError, UnicodeDecodeError):
        return None
