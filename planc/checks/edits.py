"""Edits that rules offer: a sentence replaced, or one added below the mesh."""

from __future__ import annotations

from planc.diag.diagnostic import Edit, Fix
from planc.diag.span import Span
from planc.ir.base import Cause
from planc.ir.mesh import Mesh


def sentence(verb: str, rest: str) -> str:
    """The text of a sentence: `verb` padded to its column, as the formatter writes it, and `rest`."""
    return f"{verb:<9} {rest}"


def replace(cause: Cause | None, text: str, *, safe: bool = False) -> Fix | None:
    """Write another sentence in place of one; None when a layout wrote it. `safe`: the plan means the same."""
    if cause is None or cause.via:
        return None
    on, colon, _ = cause.sentence.partition(":")
    target = f"{on}: " if colon and on.startswith("on ") else ""
    return Fix(f"write `{target}{' '.join(text.split())}`", (Edit(cause.span, target + text),), safe)


def remove(cause: Cause, *, safe: bool = False) -> Fix | None:
    """Take a sentence out; None when a layout wrote it. `safe`: the plan means the same without it."""
    span = cause.span
    line = Span(span.file, span.line, 1, span.end_line + 1, 1)
    return None if cause.via else Fix("remove this sentence", (Edit(line, ""),), safe)


def add(mesh: Mesh, text: str) -> Fix:
    """An edit that writes the sentence `text` on the line after that of `mesh`."""
    line = mesh.cause.span.end_line + 1
    at = Span(mesh.cause.span.file, line, 1, line, 1)
    return Fix(f"add `{' '.join(text.split())}`", (Edit(at, text + "\n"),))


def mesh_sentence(sizes: dict[str, int]) -> str:
    """The text of a mesh sentence for `sizes`, axis to ranks, outermost first."""
    return sentence("mesh", " > ".join(f"{name} {size}" for name, size in sizes.items()))


def divisors(n: int, most: int = 4096) -> list[int]:
    """Every divisor of `n` from 1 up to `most`, and to 4096 at most."""
    return [d for d in range(1, min(n, most, 4096) + 1) if n % d == 0]
