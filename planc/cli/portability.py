"""`planc audit --portability MODULE`: check that a torch module runs as one program on XLA at every step."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from planc.cli.common import print_diagnostics, print_json, refused
from planc.diag.diagnostic import Diagnostic
from planc.diag.span import Span
from planc.files import MAX_TEXT_BYTES, read_text
from planc.ir.installed import missing_framework

if TYPE_CHECKING:
    from planc.backends.torch_xla.audit.places import Place
    from planc.backends.torch_xla.audit.walk import Walked


def run(name: str, format: str) -> int:
    """Return the exit status: 0 if the torch module `name` runs as one program on XLA at every step; 1 if it does not;
    2 if there is no such module, or torch is not installed."""
    try:
        walked, origin = _walk_module(name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        refused(missing_framework(error, "cuda", Span(name, 1, 1, 1, 1)).diagnostics, format)
        return 2
    except LookupError as error:
        print(f"planc audit: {error.args[0]}", file=sys.stderr)
        return 2
    leaks = [
        Diagnostic(leak.code, leak.message, _span(leak.place or origin), label=_place_text(leak.place), help=leak.help)
        for leak in walked.leaks
    ]
    if format == "json":
        print_json(_json(name, walked, leaks), "planc.portability/1")
    elif leaks:
        print_diagnostics(leaks)
    else:
        print(f"{name}: portable; a step of {walked.operations} operations, the same at every step")
    return 1 if leaks else 0


def _walk_module(name: str) -> tuple[Walked, Place]:
    from planc.backends.torch_xla.audit.modules import found, origin, step_of
    from planc.backends.torch_xla.audit.walk import walk

    module, inputs = found(name)
    return walk(step_of(module, inputs)), origin(module)


def _json(name: str, walked: Walked, leaks: list[Diagnostic]) -> dict[str, object]:
    return {
        "module": name,
        "operations": walked.operations,
        "diagnostics": [leak.to_json() for leak in leaks],
        "ok": not leaks,
    }


def _span(place: Place) -> Span:
    path = Path(place.file)
    short = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    try:
        text = read_text(path, MAX_TEXT_BYTES).splitlines()[place.line - 1]
    except (OSError, ValueError, IndexError):
        text = " "
    begin = len(text) - len(text.lstrip()) + 1
    return Span(str(short), place.line, begin, place.line, max(len(text.rstrip()) + 1, begin + 1))


def _place_text(place: Place | None) -> str:
    return f"in {place.function}" if place else "in the backward of this module"
