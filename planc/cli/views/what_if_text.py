"""The answer of `planc check --with`, which changes the machine, as text."""

from __future__ import annotations

from collections.abc import Iterator

from planc.cli.views.report_text import strong
from planc.cli.views.table import table
from planc.compare.what_if import State, WhatIf
from planc.ir.target import named
from planc.picture.units import seconds


def lines(found: WhatIf) -> Iterator[str]:
    """Yield the step before and after the machine change, the busiest links, and the axes that get slower."""
    before, after = found.before, found.after
    yield f"{strong(found.plan)} with {'; '.join(found.changes)}, {named(found.target)}"
    yield ""
    if seconds(before.step_s) != seconds(found.checked_s):
        yield f"`planc check`: {seconds(found.checked_s)}; here every collective is routed over the machine's links:"
    yield from table(
        ("", "step", "exposed", "tokens/s", "busiest link", "it sends"),
        [("routed before", *_row(before)), ("routed after", *_row(after))],
        left=1,
    )
    slower = after.step_s / before.step_s - 1
    tokens = after.tokens_per_s / before.tokens_per_s - 1
    yield f"The step takes {_percent(slower, 'longer', 'less')}; tokens a second: {tokens:+.2%}."
    if before.mesh != after.mesh:
        mesh = " > ".join(f"{name} {size}" for name, size in after.mesh.items())
        yield f"{after.devices:,} devices of {before.devices:,} are used, with the mesh {mesh} and a smaller batch."
    yield ""
    rows = [
        (a.axes, seconds(a.before_s), seconds(a.after_s), _change(a.before_s, a.after_s), a.before_link, a.after_link)
        for a in found.axes
    ]
    yield from table(("axes", "before", "after", "change", "slowest link before", "after"), rows, left=1)


def _row(state: State) -> tuple[str, ...]:
    busiest = (state.busiest_link, seconds(state.busiest_s))
    return (seconds(state.step_s), seconds(state.exposed_s), f"{state.tokens_per_s:,.0f}", *busiest)


def _percent(part: float, more: str, less: str) -> str:
    return f"{abs(part):.2%} {more if part >= 0 else less}"


def _change(before_s: float, after_s: float) -> str:
    return f"{after_s / before_s - 1:+.1%}" if before_s else ""
