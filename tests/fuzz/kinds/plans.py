"""Plans: nearly right, damaged, grown of the grammar, bitten, words in no order, bytes."""

from __future__ import annotations

import ast
import json
import random
from pathlib import Path

from planc.checks import rules
from planc.diag import PlanError
from planc.diag.edits import apply_edits
from planc.diag.text import render
from planc.driver import Examined, examine
from planc.ir.program_shape import foreign
from planc.ir.read_plan import read_plan
from planc.ir.target import Target
from planc.lowering import lower_sharded
from planc.syntax.fmt import format_text
from tests.fuzz.inputs import make as damaged
from tests.fuzz.inputs import words
from tests.fuzz.kinds import Kind
from tests.fuzz.near import near, sentences

RUNTIMES: tuple[tuple[Target, str], ...] = (("cuda", "torch"), ("xla", "jax"), ("xla", "torch_xla"))
UNPARSED = {"E0101", "E0102", "E0104", "E0105", "E0106"}
TWICE = 50
"""Every so many inputs are checked twice: the answers must be equal."""


def make(seed: int, index: int) -> bytes:
    """Seven of ten are nearly right."""
    if index % 10 < 7:
        return near(random.Random(f"{seed}:{index}")).encode("utf-8", "surrogatepass")
    return damaged(seed, index // 10)


def warm() -> None:
    words()
    sentences()
    examine(Path(__file__).parents[3] / "plans" / "tiny.plan")


def run(data: bytes, folder: Path, index: int) -> tuple[str, ...]:
    """Check the plan, and lower what can be costed for one runtime in turn."""
    path = folder / "x.plan"
    path.write_bytes(data)
    found = examine(path)
    report = found.report
    answer = json.dumps(report.to_json(), allow_nan=False)
    assert report.step is not None or report.diagnostics, "neither a cost nor a finding"
    _findings(found, data)
    if index % TWICE == 0:
        assert answer == json.dumps(examine(path).report.to_json(), allow_nan=False), "two answers differ"
    reached = _reached(found)
    if reached == "unparsed":
        return (reached,)
    if index % 5 == 0:
        _formatted(data.decode("utf-8-sig"))
    if found.sharded is None:
        return (reached,)
    if index % 7 == 0 and found.plan is not None:
        assert read_plan(found.plan.to_json()) == found.plan, "another plan is read back"
    return reached, lowered(found, index)


def _findings(found: Examined, data: bytes) -> None:
    """Each finding has a code, a place and words; its edit changes the text."""
    for d in found.report.diagnostics:
        assert d.code in rules(), f"{d.code} has no page"
        assert d.span.line >= 1 and d.span.column >= 1 and d.message, d
        if d.fix is not None and all(e.span.file == d.span.file for e in d.fix.edits):
            text = data.decode("utf-8-sig")
            assert apply_edits(text, d.fix.edits) != text, f"the edit of {d.code} changes nothing"
    shown = render(found.report.diagnostics, found.sources)
    assert all(c.isprintable() or c == "\n" for c in shown), "a control character is printed"


def _reached(found: Examined) -> str:
    """How far the plan came."""
    if found.report.step is not None:
        return "costed"
    if found.sharded is not None:
        return "checked"
    if found.plan is not None:
        return "resolved"
    return "unparsed" if UNPARSED & {d.code for d in found.report.diagnostics} else "parsed"


def _formatted(text: str) -> None:
    once = format_text(text)
    assert format_text(once) == once, "formatting twice gives another text"


def lowered(found: Examined, index: int) -> str:
    """The program for one runtime is Python, and nothing but what a backend writes."""
    target, runtime = RUNTIMES[index % 3]
    assert found.sharded is not None
    try:
        text = lower_sharded(found.sharded, target, runtime).text
    except PlanError:
        return f"refused by {runtime}"
    ast.parse(text)
    why = foreign(text)
    assert not why, f"the program is none that planc loads: {why}"
    return f"lowered for {runtime}"


KIND = Kind(
    "plans", ".plan", "lines", 1_000_000, make, run, warm,
    deep=("unparsed", "parsed", "resolved", "costed", "lowered for torch", "lowered for jax"),
)  # fmt: skip
