"""`planc expand FILE`: the plan with every shorthand replaced by the sentences it stands for."""

from __future__ import annotations

import argparse
from pathlib import Path

from planc.cli.common import add_set, exit_status, print_diagnostics, print_json
from planc.language.build import build_file


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE")
    add_set(parser)


def run(options: argparse.Namespace) -> int:
    path = Path(options.file)
    built = build_file(path, dict(options.set))
    rows = [(s.text, s.via.text if s.via else "") for s in built.sentences]
    if options.format == "json":
        sentences = [{"sentence": text, "via": via or None} for text, via in rows]
        found = {"sentences": sentences, "diagnostics": [d.to_json() for d in built.diagnostics]}
        print_json(found, "planc.expand/1")
    else:
        wide = max((len(_aligned(text)) for text, _ in rows), default=0)
        if built.plan is not None:
            print(f"plan {built.plan.name}")
        for text, via in rows:
            print(f"{_aligned(text):<{wide}}  # {via}" if via else _aligned(text))
        if built.diagnostics:
            print_diagnostics(built.diagnostics)
    return exit_status(built.diagnostics)


def _aligned(text: str) -> str:
    verb, _, rest = text.partition(" ")
    return f"{verb:<9} {rest}"
