"""Edits of a plan's text that rules offer as fixes: replace, remove or add a sentence."""

from __future__ import annotations

from planc.diag.diagnostic import Edit, Fix
from planc.diag.span import Span
from planc.ir.base import Cause
from planc.ir.mesh import Mesh


def sentence(verb: str, rest: str) -> str:
    """Return the sentence `verb` `rest` with the spacing of the formatter."""
    return f"{verb:<9} {rest}"


def replace(cause: Cause | None, text: str, *, safe: bool = False) -> Fix | None:
    """Return the edit that replaces the sentence at `cause` by `text`. None if it comes from a layout (a file of
    sentences for `use`). `safe`: the plan's meaning stays the same."""
    if cause is None or cause.via:
        return None
    on, colon, _ = cause.sentence.partition(":")
    target = f"{on}: " if colon and on.startswith("on ") else ""
    return Fix(f"write `{target}{' '.join(text.split())}`", (Edit(cause.span, target + text),), safe)


def remove(cause: Cause, *, safe: bool = False) -> Fix | None:
    """Return the edit that removes the sentence at `cause`; None if a layout wrote it. `safe` is as in `replace`."""
    span = cause.span
    line = Span(span.file, span.line, 1, span.end_line + 1, 1)
    return None if cause.via else Fix("remove this sentence", (Edit(line, ""),), safe)


def add(mesh: Mesh, text: str) -> Fix:
    """Return the edit that adds the sentence `text` below the `mesh` sentence."""
    line = mesh.cause.span.end_line + 1
    at = Span(mesh.cause.span.file, line, 1, line, 1)
    return Fix(f"add `{' '.join(text.split())}`", (Edit(at, text + "\n"),))


def mesh_sentence(sizes: dict[str, int]) -> str:
    """Return a `mesh` sentence. `sizes` maps each axis name, outermost first, to its number of ranks."""
    return sentence("mesh", " > ".join(f"{name} {size}" for name, size in sizes.items()))


def divisors(n: int, most: int = 4096) -> list[int]:
    """Return every divisor of `n` up to the smaller of `most` and 4096, in ascending order."""
    return [d for d in range(1, min(n, most, 4096) + 1) if n % d == 0]
