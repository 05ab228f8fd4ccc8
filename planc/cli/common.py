"""Helpers of the commands: plan arguments, the terminal, printing diagnostics and JSON."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from planc.diag.diagnostic import Diagnostic, has_errors
from planc.diag.span import Source
from planc.files import leads_out, read_bounded
from planc.ir.target import NO_TARGET, TARGETS

MOST_SET = 10**12
"""Upper limit of a `--set` value."""
DIAGNOSTICS = "planc.diagnostics/1"
UNREADABLE = ("E0104", "E0105", "E1001")
"""Codes for plans and presets that cannot be read, or are not text."""


MAX_BYTES = 16_000_000
"""Limit on the size of a quoted file, such as a preset."""


def output_path(*endings: str) -> Callable[[str], Path]:
    """Return the `type` of an argparse argument: a path that must end in one of `endings`, each with its dot."""

    def named(text: str) -> Path:
        path = Path(text)
        if path.suffix not in endings:
            raise argparse.ArgumentTypeError(f"{text!r} does not end in {', '.join(endings)}")
        return path

    return named


def add_set(
    parser: argparse.ArgumentParser, flag: str = "--set", help: str = "change a number that `let` names"
) -> None:
    """Add the option `--set NAME=NUMBER`, which may be repeated and changes a `let` number of the plan."""
    parser.add_argument(flag, action="append", default=[], type=number_setting, metavar="NAME=N", help=help)


def add_target(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add the option `--target cuda|xla` of commands that write, run or measure a program."""
    parser.add_argument("--target", choices=TARGETS, required=required, help="which stack")


def add_costed_target(parser: argparse.ArgumentParser) -> None:
    """Add the option `--target cuda|xla|none` of commands that cost a plan; `none` is any correct program."""
    parser.add_argument(
        "--target",
        choices=(*TARGETS, NO_TARGET),
        help="cost this stack's program, or with none what any correct program needs (the plan's: TPUs xla, else cuda)",
    )


def number_setting(text: str) -> tuple[str, int]:
    """Return the name and the number of `NAME=NUMBER`. Raises ArgumentTypeError for another text."""
    name, _, value = text.partition("=")
    if not name or not (value.isascii() and value.isdigit()) or len(value) > 15:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=NUMBER")
    if int(value) > MOST_SET:
        raise argparse.ArgumentTypeError(f"{text!r} is more than {MOST_SET:,}")
    return name, int(value)


def colour() -> bool:
    """True if standard output is a terminal and NO_COLOR is unset."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def width() -> int:
    """Return the width of the terminal in columns; 100 if there is no terminal."""
    return shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 100


def print_json(value: Mapping[str, Any], format: str = "") -> None:
    """Print `value` as a JSON object. `format` is the name of its JSON schema, printed as its first key."""
    answer = {"format": format, **value} if format else value
    assert "format" in answer or "$schema" in answer
    print(json.dumps(answer, indent=2))


def print_json_list(values: Sequence[Mapping[str, Any]]) -> None:
    """Print `values` as a JSON array. Each object already has its key `format`."""
    assert all("format" in value for value in values)
    print(json.dumps(values, indent=2))


def refused(diagnostics: Sequence[Diagnostic], format: str, sources: Mapping[str, Source] | None = None) -> int:
    """Print `diagnostics`, the reasons why there is no answer, as text or JSON. Return the exit status, 1 or 2."""
    if format == "json":
        print_json({"diagnostics": [d.to_json() for d in diagnostics]}, DIAGNOSTICS)
    else:
        print_diagnostics(diagnostics, sources)
    return exit_status(diagnostics)


def exit_status(diagnostics: Sequence[Diagnostic]) -> int:
    """Return the exit status (a number) for `diagnostics`: 0 without errors, 2 if an input is unreadable, else 1."""
    if any(d.code in UNREADABLE and d.span.empty for d in diagnostics):
        return 2
    return 1 if has_errors(list(diagnostics)) else 0


def did_you_mean(word: str, legal: Iterable[str]) -> str:
    """Return a question that suggests the word of `legal` nearest to `word`; "" if none is near."""
    from planc.syntax.suggest import nearest

    near = nearest(word.replace("-", "_"), legal, 1)
    return f"did you mean `{near[0]}`?" if near else ""


def print_diagnostics(diagnostics: Sequence[Diagnostic], sources: Mapping[str, Source] | None = None) -> None:
    """Print `diagnostics` to standard output with the lines of the plan that they are about, if these can be read.

    `sources` are texts already read, by file name.
    """
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
        path = Path(file)
        return None if leads_out(path) else Source.of(file, read_bounded(path, MAX_BYTES).decode("utf-8-sig"))
    except (OSError, UnicodeDecodeError):
        return None
