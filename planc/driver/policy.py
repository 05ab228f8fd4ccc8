"""Reads `planc.toml`: what a repository expects of every plan in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from planc.diag.diagnostic import Diagnostic
from planc.diag.quoting import printable
from planc.diag.span import Source, Span
from planc.files import parse_toml, read_text
from planc.ir.base import Cause
from planc.language.build import Built, build_file

NAME = "planc.toml"
MAX_BYTES = 100_000
_KEYS = 'it has the one key `expect`, a list of texts such as "memory <= 72 GiB" and "no W0508"'
_ANY = "plan p\nmodel llama_tiny\nbatch 8 x 8 tokens microbatch 1\ncluster 1 x cpu_local\nmesh dp 1\ncompute fp32\n"


def with_policy(built: Built, path: Path | None) -> Built:
    """Return `built` with the expectations of the repository's `planc.toml` added to the plan's own.

    The file is looked for from the folder of the plan at `path` up to the folder with `.git`; without such a folder, in
    the plan's folder alone. Mistakes in it become diagnostics (E0808).
    """
    own = built.plan
    if path is None or own is None or (file := _policy_of(path.parent)) is None:
        return built
    name = os.path.relpath(file, path.parent)
    start = Span(name, 1, 1, 1, 1)
    try:
        source = Source.of(name, read_text(file, MAX_BYTES))
        values = parse_toml(source.text)
    except (OSError, ValueError) as error:
        message = f"{NAME} cannot be read: {getattr(error, 'strerror', None) or error}"
        return replace(built, diagnostics=(*built.diagnostics, Diagnostic("E0808", printable(message), start)))
    entries = values.get("expect", [])
    texts = entries if isinstance(entries, list) and all(isinstance(e, str) for e in entries) else None
    built = replace(built, sources={**built.sources, name: source})
    if texts is None or values.keys() - {"expect"}:
        wrong = Diagnostic("E0808", f"{NAME} has other keys or values", start, help=_KEYS)
        return replace(built, diagnostics=(*built.diagnostics, wrong))
    expects, without, found = [], [], list(built.diagnostics)
    for text, span in _placed(source, texts):
        place = file.parent.resolve() / "expect.plan"
        one = build_file(place, unsaved={place: f"{_ANY}expect {text}\n"}) if "\n" not in text else None
        plan = one.plan if one else None
        if plan is None or len(plan.expects) + len(plan.expects_no) != 1:
            why = next((d.message for d in one.diagnostics if d.severity == "error"), "") if one else ""
            found.append(Diagnostic("E0808", f"`{printable(text)[:80]}` is no expectation: {why}", span, help=_KEYS))
            continue
        cause = Cause(span=span, sentence=f"expect {text}")
        expects += [replace(e, cause=cause) for e in plan.expects]
        without += [replace(e, cause=cause) for e in plan.expects_no]
    wider = replace(own, expects=(*own.expects, *expects), expects_no=(*own.expects_no, *without))
    return replace(built, plan=wider, diagnostics=tuple(found))


def _policy_of(folder: Path) -> Path | None:
    """Return the path of the nearest `planc.toml`, inside the repository of `folder`; None if there is none."""
    here = folder.resolve()
    above = [here, *here.parents]
    root = next((i for i, one in enumerate(above) if (one / ".git").exists()), 0)
    return next((one / NAME for one in above[: root + 1] if (one / NAME).is_file()), None)


def _placed(source: Source, texts: list[str]) -> Iterator[tuple[str, Span]]:
    """Yield each text with its place: the next line that has it between quotes, or else the start of the file."""
    line = 0
    for text in texts:
        at = next((n for n in range(line, len(source.lines)) if text and text in source.lines[n]), None)
        if at is None:
            yield text, Span(source.file, 1, 1, 1, 1)
            continue
        column = source.lines[at].index(text) + 1
        line = at
        yield text, Span(source.file, at + 1, column, at + 1, column + len(text))
