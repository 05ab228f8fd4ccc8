"""`planc fmt PATH...`: rewrites plans in the standard form: spacing, and old spellings. `--check` changes nothing."""

from __future__ import annotations

import argparse
import codecs
import sys
from pathlib import Path

from planc.cli.commands.check import files_of
from planc.cli.common import print_json
from planc.files import read_bounded, read_text, write_atomically
from planc.language.imports import MAX_BYTES
from planc.language.modernize import modernize
from planc.syntax.fmt import format_text


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a file, or a folder: every .plan file below it")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a file would change")


def run(options: argparse.Namespace) -> int:
    changed: list[str] = []
    for file in (str(file) for path in options.paths for file in files_of(Path(path))):
        try:
            before = read_text(Path(file), MAX_BYTES)
        except (OSError, ValueError) as error:
            print(f"planc fmt: {file} cannot be read: {error}", file=sys.stderr)
            return 2
        after = format_text(modernize(Path(file), before))
        if after != before:
            changed.append(file)
            if not options.check:
                write_atomically(Path(file), _as_in(Path(file), after))
    if options.format == "json":
        print_json({"changed": changed, "check": options.check}, "planc.fmt/1")
    else:
        for file in changed:
            print(f"{'would change' if options.check else 'formatted'}: {file}")
    return 1 if changed and options.check else 0


def _as_in(path: Path, text: str) -> bytes:
    """Return `text` as bytes with the line endings and the byte-order mark of the file at `path`."""
    data = read_bounded(path, MAX_BYTES)
    mark = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
    return mark + (text.replace("\n", "\r\n") if b"\r\n" in data else text).encode()
