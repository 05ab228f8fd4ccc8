"""Emits the table and the functions for padded parameters."""

from __future__ import annotations

from planc.backends.common.source_writer import INDENT, WIDTH, beside, comment
from planc.backends.common.specialise import specialise
from planc.backends.xla.analysis.padding import padded, waste
from planc.backends.xla.analysis.pipeline import pipelined
from planc.backends.xla.program.facts import JaxFacts
from planc.diag.quoting import python_string
from planc.ir.sharding import Sharded

CUT = "loss_fn = _without_padding(loss_fn)"
"""First line of functions that build a step. A pipeline unpads elsewhere: it recognises its layers by identity."""


def padding_table(sharded: Sharded) -> list[str]:
    """Return the lines of `PADDED`, sizes and padded sizes of the dims of padded parameters; [] if there are none."""
    found = padded(sharded)
    if not found:
        return []
    said = "Parameters that do not divide evenly, padded with zeros: each dim's size and stored size."
    rows = []
    for name, shape in found.items():
        pairs = zip(sharded.model.shape(sharded.model.param[name]), shape, strict=True)
        text = ", ".join(f"({size}, {stored})" for size, stored in pairs)
        comma = "," if len(shape) == 1 else ""
        code = f"{INDENT}{python_string(name)}: ({text}{comma}),"
        rows += beside(code, f"{waste(sharded, name):.1%} more")
    return [*comment(said), "PADDED = {", *rows, "}"]


def padding_functions(sharded: Sharded) -> list[str]:
    """Return the source of `pad` and of the functions that unpad; [] if no parameter is padded."""
    if not padded(sharded):
        return []
    entries = ["pad", "_unpadded" if pipelined(sharded.plan) else "_without_padding"]
    return specialise("planc.backends.xla.program", "padding", JaxFacts(), entries, WIDTH)
