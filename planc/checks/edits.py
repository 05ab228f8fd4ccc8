"""Edits that rules offer: replace a sentence, or add one below the mesh."""

from __future__ import annotations

from planc.diag.diagnostic import Edit, Fix
from planc.diag.span import Span
from planc.ir.base import Cause
from planc.ir.mesh import Mesh


def sentence(verb: str, rest: str) -> str:
    """Return the text of a sentence: `verb` padded to its column, as the formatter writes it, and `rest`."""
    return f"{verb:<9} {rest}"


def replace(cause: Cause | None, text: str, *, safe: bool = False) -> Fix | None:
    """Return the edit that replaces the sentence of `cause` by `text`. None if a layout (a shared file of sentences)
    wrote the sentence. `safe`: the edit keeps the plan's meaning."""
    if cause is None or cause.via:
        return None
    on, colon, _ = cause.sentence.partition(":")
    target = f"{on}: " if colon and on.startswith("on ") else ""
    return Fix(f"write `{target}{' '.join(text.split())}`", (Edit(cause.span, target + text),), safe)


def remove(cause: Cause, *, safe: bool = False) -> Fix | None:
    """Return the edit that removes the sentence of `cause`. None if a layout (a shared file of sentences) wrote the
    sentence. `safe`: the edit keeps the plan's meaning."""
    span = cause.span
    line = Span(span.file, span.line, 1, span.end_line + 1, 1)
    return None if cause.via else Fix("remove this sentence", (Edit(line, ""),), safe)


def add(mesh: Mesh, text: str) -> Fix:
    """Return the edit that adds the sentence `text` on the line after that of `mesh`."""
    line = mesh.cause.span.end_line + 1
    at = Span(mesh.cause.span.file, line, 1, line, 1)
    return Fix(f"add `{' '.join(text.split())}`", (Edit(at, text + "\n"),))


def mesh_sentence(sizes: dict[str, int]) -> str:
    """Return the text of a mesh sentence. `sizes` maps each axis, outermost first, to its number of ranks."""
    return sentence("mesh", " > ".join(f"{name} {size}" for name, size in sizes.items()))


def divisors(n: int, most: int = 4096) -> list[int]:
    """Return every divisor of `n` from 1 up to `most`, at most 4096."""
    return [d for d in range(1, min(n, most, 4096) + 1) if n % d == 0]
