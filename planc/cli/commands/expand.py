"""`planc expand FILE`: the plan with every shorthand replaced by the sentences it stands for, and its defaults said."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

from planc.cli.common import add_costed_target, add_set, exit_status, print_diagnostics, print_json
from planc.driver import Examined, examine
from planc.ir.target import NO_TARGET
from planc.language.defaults import completed, defaults
from planc.language.precedence import without_subjects
from planc.syntax import parse_text
from planc.syntax.tree import Sentence

DEFAULT = "default"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE")
    add_set(parser)
    add_costed_target(parser)


def run(options: argparse.Namespace) -> int:
    path = Path(options.file)
    found = examine(path, set=dict(options.set), target=options.target, targets=())
    assert found.built is not None
    diagnostics = found.built.diagnostics
    rows = list(_rows(path, found, dict(options.set)))
    if options.format == "json":
        sentences = [{"sentence": text, "via": via or None} for text, via in rows]
        print_json({"sentences": sentences, "diagnostics": [d.to_json() for d in diagnostics]}, "planc.expand/1")
    else:
        wide = max((len(_aligned(text)) for text, _ in rows), default=0)
        if found.plan is not None:
            print(f"plan {found.plan.name}")
        for text, via in rows:
            print(f"{_aligned(text):<{wide}}  # {via}" if via else _aligned(text))
    if diagnostics and options.format != "json":
        with redirect_stdout(sys.stderr):  # standard output is a plan
            print_diagnostics(diagnostics)
    return exit_status(diagnostics)


def _rows(path: Path, found: Examined, given: dict[str, int]) -> Iterator[tuple[str, str]]:
    """Sentences, each with what wrote it: a `use`, or `default` where the plan says nothing. Empty: the plan itself."""
    assert found.built is not None
    own = found.built.sources.get(path.name)
    if own is not None:
        yield from ((s.text, "") for s in parse_text(own.text, path.name).sentences if s.verb == "import")
    plan = found.plan
    for sentence in _known(found):
        via, text = sentence.via.text if sentence.via else "", sentence.text
        if sentence.verb == "let" and (name := sentence.node.words("NAME")[0].text) in given:
            text = f"let {name} = {given[name]}"
        whole = completed(text, plan) if plan else text
        yield whole, via or (DEFAULT + whole.removeprefix(text) if whole != text else "")
    if plan is not None:
        yield from ((text, DEFAULT) for text in defaults(plan))
        if found.built.target is None:
            yield f"target {found.report.target or NO_TARGET}", DEFAULT


def _known(found: Examined) -> Iterator[Sentence]:
    """The sentences, those of layouts without dims that the plan's model has not."""
    assert found.built is not None
    for sentence in found.built.sentences:
        dims = {w.text for w in sentence.names(0)} if sentence.verb in ("shard", "replicate") else set()
        unknown = dims - {"batch", "sequence", *found.plan.model.sizes} if sentence.via and found.plan else set()
        known = without_subjects(sentence, unknown)
        if known is not None:
            yield known


def _aligned(text: str) -> str:
    verb, _, rest = text.partition(" ")
    return f"{verb:<9} {rest}"
