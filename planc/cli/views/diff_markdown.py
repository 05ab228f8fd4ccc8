"""Differences of plans as Markdown for a comment on a pull request: a summary, with the details folded.

All strings of a plan are in code spans, in which GitHub creates no mentions, references or links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from planc.cli.views.diff_text import TITLES, formatted, label, lines, ratio
from planc.compare.diff import Diff, PlanChange
from planc.compare.pairs import Pair
from planc.diag.diagnostic import Diagnostic
from planc.diag.quoting import markdown_block, markdown_cell, markdown_code, xml_text
from planc.driver import Examined
from planc.ir.report import Memory, Report
from planc.picture.units import gib, seconds, size

MOST_TEXT = 60_000
"""Limit on characters of an answer; a GitHub comment holds 65,536."""
MOST_WHOLE = 3
"""Number of changed plans that are shown in detail; with more, each is one row."""
MOST_ROWS = 100
MOST_FINDINGS = 10
KINDS = {
    "new": "new",
    "gone": "gone",
    "mended": "without errors now",
    "broken": "with errors now",
    "wrong": "with other errors",
}
SAME = "no plan changes in memory, time, layouts or findings"


def markdown(pairs: Sequence[Pair]) -> str:
    """Return the comment on the changed plans in `pairs` (a plan before and after). It begins with a summary."""
    changed = [p for p in pairs if p.kind != "same"]
    if not changed:
        return f"{SAME} ({len(pairs)} compared)"
    if len(changed) == 1:
        return _bounded([headline(changed[0]), *_parts(changed[0])])
    first = f"**{len(changed)} of {len(pairs)} plans change**: {'; '.join(_together(changed))}"
    if len(changed) <= MOST_WHOLE:
        return _bounded([first, *(part for p in changed for part in (headline(p), *_parts(p)))])
    folded = (_folded(_code_in_tags(p.name), "\n\n".join(_parts(p))) for p in changed)
    return _bounded([first, _rows(changed), *folded])


def headline(pair: Pair) -> str:
    """Return one line about `pair`: memory, step time, if old checkpoints load, and if losses are comparable."""
    name = f"**{markdown_code(pair.name)}**"
    found = pair.found
    if found is not None:
        return f"{name}: {_numbers(pair)}; {checkpoint(found)}; {_losses(found)}"
    now = pair.after.report if pair.after else None
    if pair.kind == "gone" or now is None:
        return f"{name} is gone"
    if now.step is None or now.memory is None:
        verb = {"new": "is new and has", "broken": "no longer holds:", "wrong": "still has"}[pair.kind]
        return f"{name} {verb} {_errors(now)}"
    verb = "is new" if pair.kind == "new" else "has no error any more"
    return f"{name} {verb}: {_of(now.memory)}, step {seconds(now.step.time_s)}"


def checkpoint(found: Diff) -> str:
    """Return a clause that says if a checkpoint of the old plan loads in the new one, and the bytes that move."""
    move = found.checkpoint
    if move is None:
        return "the checkpoint does **not** load: other parameters"
    if any(reason.what == "optimizer" for reason in found.apart):
        return "the checkpoint does **not** load: another optimizer"
    if not move.same_machine:
        return f"the checkpoint still loads, all {size(move.needed_bytes)} on other machines"
    if not move.moved_bytes:
        return "the checkpoint still loads, nothing moves"
    return f"the checkpoint still loads, {size(move.moved_bytes)} of {size(move.needed_bytes)} move"


def _numbers(pair: Pair) -> str:
    used, times, limit = _used(pair), _times(pair), gib(_memory(pair.after).capacity_gib)
    return f"memory {_arrow(used, gib, f' of {limit} GiB')}, step {_arrow(times, seconds)}"


def _arrow(values: tuple[float, float], text: Callable[[float], str], unit: str = "") -> str:
    """Return both values and their relative change, as in `4.12 s → 3.87 s (-6.1%)`; one value if both texts are the
    same."""
    before, after = map(text, values)
    return f"{after}{unit} as before" if before == after else f"{before} → {after}{unit} ({ratio(*values)})"


def _used(pair: Pair) -> tuple[float, float]:
    """Return the total GiB of the fullest device before and after the change."""
    before, after = (_memory(e).per_device_gib.total for e in (pair.before, pair.after))
    return before, after


def _times(pair: Pair) -> tuple[float, float]:
    """Return the step time (s) before and after the change."""
    before, after = (e.report.step for e in (pair.before, pair.after) if e is not None)
    assert before and after
    return before.time_s, after.time_s


def _memory(examined: Examined | None) -> Memory:
    assert examined is not None and examined.report.memory
    return examined.report.memory


def _losses(found: Diff) -> str:
    if found.comparable:
        return "losses stay comparable"
    return f"losses are **not** comparable: {', '.join(markdown_code(r.what) for r in found.apart)}"


def _errors(report: Report) -> str:
    errors = [d for d in report.diagnostics if d.severity == "error"]
    codes = ", ".join(dict.fromkeys(d.code for d in errors))
    return f"**{len(errors)} error{'s' if len(errors) > 1 else ''}** ({codes})"


def _of(memory: Memory) -> str:
    return f"memory {gib(memory.per_device_gib.total)} of {gib(memory.capacity_gib)} GiB"


def _together(pairs: Sequence[Pair]) -> Iterator[str]:
    """Yield clauses about all changed plans: memory, step time, checkpoints, and how many have which kind of change."""
    costed = [p for p in pairs if p.found is not None]
    if costed:
        yield f"memory {_range([_used(p) for p in costed])}, step {_range([_times(p) for p in costed])}"
        lost = sum("**not**" in checkpoint(p.found) for p in costed if p.found is not None)
        yield f"{lost} of {len(costed)} checkpoints do **not** load" if lost else "their checkpoints still load"
    for kind, said in KINDS.items():
        if count := sum(p.kind == kind for p in pairs):
            yield f"{count} {said}"


def _range(numbers: Sequence[tuple[float, float]]) -> str:
    changes = sorted(b / a - 1 for a, b in numbers)
    ends = [f"{change:+.1%}" for change in (changes[0], changes[-1])]
    if set(ends) <= {"+0.0%", "-0.0%"}:
        return "as before"
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


# Parts of one plan.


def _parts(pair: Pair) -> Iterator[str]:
    yield from _table(pair.found)
    yield from _findings(pair)
    if pair.before and pair.after and (changed := pair.sentences):
        yield _folded("changed sentences", markdown_block("\n".join(changed), "diff"))
    if pair.found is not None and (pair.found.changes or pair.found.apart):
        yield _folded("<code>planc diff</code>", markdown_block("\n".join(lines(pair.found, str))))


def _table(found: Diff | None) -> Iterator[str]:
    if found is None:
        return
    rows = [_row(c) for part in ("plan", "step", "run", "memory") for c in found.changes if c.part == part]
    traffic = [c for c in found.changes if c.part == "collectives" and c.unit == "bytes"]
    rows += [_row(c) for c in traffic]
    if rows:
        yield "\n".join(["| | before | after | change |", "|---|---:|---:|---:|", *rows])


def _row(change: PlanChange) -> str:
    if change.part == "plan":
        cells = [f"{TITLES['plan']}: {change.name}", *(_value(v) for v in (change.a, change.b)), ""]
    else:
        where = {"memory": "memory, GiB: ", "collectives": "sent: "}.get(change.part, "")
        texts = [formatted(v, change.unit) for v in (change.a, change.b)]
        cells = [f"{where}{markdown_cell(label(change))}", *texts, ratio(change.a, change.b)]
    return f"| {' | '.join(cells)} |"


def _value(value: float | str | None) -> str:
    return "-" if value is None else markdown_code(str(value))


def _findings(pair: Pair) -> Iterator[str]:
    new, gone = pair.findings
    for title, found in (("new findings", new), ("findings that are gone", gone)):
        if found:
            more = [f"- and {len(found) - MOST_FINDINGS:,} more"] if len(found) > MOST_FINDINGS else []
            yield "\n".join([f"{title}:", "", *map(_finding, found[:MOST_FINDINGS]), *more])


def _finding(d: Diagnostic) -> str:
    return f"- {d.severity} {d.code} at line {d.span.line}: {markdown_code(d.message)}"


def _folded(summary: str, text: str) -> str:
    return f"<details><summary>{summary}</summary>\n\n{text}\n\n</details>"


def _code_in_tags(name: str) -> str:
    """Return `name` as HTML code: Markdown is not parsed between tags."""
    return f"<code>{xml_text(name)}</code>"


# Many plans.


def _rows(pairs: Sequence[Pair]) -> str:
    heads = ["| plan | memory, GiB | step | checkpoint | losses |", "|---|---:|---:|---|---|"]
    more = [f"\n{len(pairs) - MOST_ROWS:,} more plans change."] if len(pairs) > MOST_ROWS else []
    return "\n".join([*heads, *map(_plan_row, pairs[:MOST_ROWS]), *more])


def _plan_row(pair: Pair) -> str:
    if pair.found is None:
        return f"| {markdown_code(pair.name)} | {headline(pair).partition('** ')[2]} | | | |"
    cells = [
        markdown_code(pair.name),
        _arrow(_used(pair), gib),
        _arrow(_times(pair), seconds),
        checkpoint(pair.found).removeprefix("the checkpoint "),
        "comparable" if pair.found.comparable else "**not** comparable",
    ]
    return f"| {' | '.join(cells)} |"


def _bounded(sections: Sequence[str]) -> str:
    """Return as many `sections` as fit in one comment, and a line that counts those left out."""
    kept: list[str] = []
    room = MOST_TEXT
    for section in sections:
        if len(section) > room:
            left = len(sections) - len(kept)
            return "\n\n".join([*kept, f"{left} more parts do not fit here; `planc diff` shows them."])
        kept.append(section)
        room -= len(section) + 2
    return "\n\n".join(kept)
