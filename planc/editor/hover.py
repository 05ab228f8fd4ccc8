"""Hover: a verb's manual, the meaning of a name, the expansion of a sentence and its cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from planc.checks import rules
from planc.diag.quoting import markdown_block
from planc.diag.span import Span
from planc.driver.reporting import grouped, run_lines
from planc.editor.names import describe
from planc.editor.opened import Opened, word_at
from planc.editor.verbs import manual
from planc.ir.report import Report, TimedCollective
from planc.picture.units import gib, seconds, size
from planc.syntax.tree import Sentence


def hover(opened: Opened, line: int, column: int) -> tuple[str, Span] | None:
    """Return Markdown about `line` and `column` (1-based code points) and its span; None between sentences."""
    sentence = opened.sentence_at(line)
    if sentence is None or not _span_contains(sentence.span, line, column):
        return None
    word, span = _explained_word(opened, sentence, line, column)
    return "\n\n".join(p for p in (word, *meaning(opened, sentence)) if p), span


def _span_contains(span: Span, line: int, column: int) -> bool:
    return (span.line, span.column) <= (line, column) <= (span.end_line, span.end_column)


def _explained_word(opened: Opened, sentence: Sentence, line: int, column: int) -> tuple[str, Span]:
    """Return an explanation of the word at a position, and its span. If the word is no name or code, it is the manual
    of the sentence's verb, with the sentence's span."""
    word = word_at(sentence, line, column)
    if word is not None and word.span in opened.lookups_by_span:
        return describe(opened.lookups_by_span[word.span], opened), word.span
    if word is not None and word.kind == "CODE" and word.text in rules():
        rule = rules()[word.text]
        return f"**{rule.code}**: {rule.page.title}\n\n{' '.join(rule.page.why.split())}", word.span
    return manual(sentence.verb), sentence.span


def meaning(opened: Opened, sentence: Sentence) -> list[str]:
    """Return, as Markdown paragraphs, what `sentence` expands to and the figures of the report that depend on it."""
    parts = [_expansion(opened, sentence)]
    report = opened.checked.report if opened.checked else None
    if report is None or report.step is None:
        return parts
    verbs = dict.fromkeys([sentence.verb, *(s.verb for s in _stood_for(opened, sentence))])
    facts = [FACTS[verb](report) for verb in verbs if verb in FACTS]
    parts.append("\n".join(f"- {fact}" for fact in facts))
    parts.append(_caused(opened, sentence, report))
    return parts


def _stood_for(opened: Opened, sentence: Sentence) -> list[Sentence]:
    """Return the sentences that a `use` sentence expands to."""
    return [s for s in opened.meant if s.via is not None and s.via.span == sentence.span]


def _expansion(opened: Opened, sentence: Sentence) -> str:
    written = _stood_for(opened, sentence)
    if not written:
        return ""
    return "stands for\n" + markdown_block("\n".join(s.text for s in written), "plan")


def _caused(opened: Opened, sentence: Sentence, report: Report) -> str:
    """Return a table of the collectives that the sentence causes."""
    rows = [r for r in report.collectives or () if _is_caused_by(r, sentence.span)]
    if not rows:
        return ""
    stage = next((r.row.stage for r in rows if r.exposed_s > 0), rows[0].row.stage)
    stages = {r.row.stage for r in report.collectives or ()}
    where = f" on stage {stage}" if len(stages) > 1 else ""
    shown = grouped(r for r in rows if r.row.stage == stage)
    head = f"collectives{where}, each device and step\n\n| op | axis | of | phase | calls | payload | time | exposed |"
    lines = [
        f"| {op} | {axis} | {carries} | {phase} | {_row_cells(group)} |"
        for (axis, _, op, carries, phase), group in shown.items()
    ]
    return "\n".join([head, "|---|---|---|---|--:|--:|--:|--:|", *lines])


def _is_caused_by(row: TimedCollective, span: Span) -> bool:
    cause = row.row.cause
    return cause is not None and cause.span.file == span.file and cause.span.line == span.line


def _row_cells(group: Iterable[TimedCollective]) -> str:
    rows = list(group)
    return " | ".join(
        (
            f"{sum(r.row.count for r in rows):,}",
            size(sum(r.row.payload_bytes for r in rows)),
            seconds(sum(r.time_s for r in rows)),
            seconds(sum(r.exposed_s for r in rows)),
        )
    )


# The figures of the report that belong to a verb, for the fullest stage and the slowest rank class.


def _model(report: Report) -> str:
    assert report.model
    return f"{report.model.params:,} parameters, {report.model.model_flops_per_token:.3g} FLOP a token"


def _batch(report: Report) -> str:
    return f"{report.tokens_per_step:,} tokens a step, {report.microbatches} microbatches a rank"


def _cluster(report: Report) -> str:
    assert report.cluster and report.memory
    facts = report.cluster
    return (
        f"{facts.devices:,} devices on {facts.chips:,} x {facts.chip}, {report.memory.capacity_gib:.0f} GiB each,"
        f" {report.memory.usable_gib:.1f} GiB of it usable"
    )


def _mesh(report: Report) -> str:
    return "; ".join(f"`{a.name}` {a.size}: stride {a.stride}, crosses `{a.level}`" for a in report.axes or ())


def _shard(report: Report) -> str:
    return f"activations: {_memory_text(report, 'activations')}"


def _store(report: Report) -> str:
    nouns = ("params", "grads", "optimizer")
    return "state on each device: " + ", ".join(f"{noun} {_memory_text(report, noun)}" for noun in nouns)


def _gather(report: Report) -> str:
    return f"gathered and other buffers: {_memory_text(report, 'buffers')}"


def _split(report: Report) -> str:
    assert report.memory and report.step
    used = ", ".join(gib(s.per_device_gib.total) for s in report.memory.stages)
    return f"bubble {seconds(report.step.bubble_s)}; GiB by stage: {used}"


def _optimizer(report: Report) -> str:
    assert report.step
    return f"state: {_memory_text(report, 'optimizer')}; its step takes {seconds(report.step.optimizer_s)}"


def _compute(report: Report) -> str:
    assert report.step
    step = report.step
    return f"compute {seconds(step.compute_s)} of {seconds(step.time_s)}, MFU {step.mfu:.1%} of {step.peak}"


def _recompute(report: Report) -> str:
    assert report.step
    return f"costs {seconds(report.step.recompute_s)}; activations kept: {_memory_text(report, 'activations')}"


def _expect(report: Report) -> str:
    assert report.memory and report.step
    step, used = report.step, report.memory.per_device_gib.total
    shares = f"bubble {step.bubble_s / step.time_s:.1%}, exposed_comm {step.exposed_comm_s / step.time_s:.1%}"
    run = "".join(f"; {line}" for line in run_lines(report.run))
    return f"memory {gib(used)} GiB, step_time {seconds(step.time_s)}, mfu {step.mfu:.1%} of {step.peak}, {shares}{run}"


def _run(report: Report) -> str:
    return "; ".join(run_lines(report.run))


def _offload(report: Report) -> str:
    assert report.step
    return f"waits for the host: {seconds(report.step.offload_s)}"


def _exposed(report: Report) -> str:
    assert report.step
    return f"communication that nothing hides: {seconds(report.step.exposed_comm_s)}"


def _memory_text(report: Report, part: str) -> str:
    assert report.memory
    return f"{gib(getattr(report.memory.per_device_gib, part))} GiB"


FACTS: dict[str, Callable[[Report], str]] = {
    "model": _model,
    "model_from": _model,
    "batch": _batch,
    "cluster": _cluster,
    "mesh": _mesh,
    "view": _mesh,
    "shard": _shard,
    "replicate": _shard,
    "store": _store,
    "gather": _gather,
    "split": _split,
    "optimizer": _optimizer,
    "freeze": _optimizer,
    "lora": _optimizer,
    "compute": _compute,
    "attention": _compute,
    "quantize": _compute,
    "offload": _offload,
    "overlap": _exposed,
    "loss": _offload,
    "recompute": _recompute,
    "train": _run,
    "price": _run,
    "expect": _expect,
}
"""Figures of the report that depend on a verb."""
