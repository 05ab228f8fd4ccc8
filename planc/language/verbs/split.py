"""`split layers over AXIS as SCHEDULE [stages [...]]`: pipeline parallelism."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from planc.diag.diagnostic import Edit, Fix
from planc.ir.plan import Split
from planc.language.draft import Draft
from planc.pipeline.schedule import Schedule
from planc.pipeline.schedules import schedules
from planc.syntax.tree import Node, Sentence, Word

VERBS = ("split",)
ORDER = 5

MOST_STAGES = 256
"""Above the layers of any published model; bounds the simulation of the schedule."""


def read(sentence: Sentence, draft: Draft) -> None:
    node = sentence.node
    words = node.words("NAME")
    draft.one_of(words[0], ("layers",), "a dim that is split into stages")
    axes = draft.axes([words[1]])
    method = node.node("method")
    assert method is not None
    if draft.free(method.parts[0], "the schedule"):
        return
    name = draft.one_of(method.words()[0], schedules(), "a pipeline schedule")
    if axes is None or name is None or draft.mesh is None or draft.model is None:
        return
    pipeline = _pipeline(method, schedules()[name], draft.mesh.size(*axes), draft)
    if pipeline is None:
        return
    count, written = pipeline.stages, node.node("stages")
    most = min(draft.model.layers + (2 if written else 0), MOST_STAGES)  # an end may hold no layer
    if draft.mesh.size(*axes) == 1:
        most = MOST_STAGES  # no pipeline
    if count > most:
        draft.report(
            "E0401",
            sentence.span,
            f"{draft.model.layers} layers cannot fill {count} stages ({axes[0]} {count // pipeline.chunks} x"
            f" {pipeline.chunks})",
            help=f"at most {most} stages",
        )
        return
    stages = _stage_ranges(written, count, draft) if written else even(draft.model.layers, count)
    if stages is not None:
        cause = draft.cause(sentence)
        draft.split = Split(
            axis=axes[0], schedule=name, chunks=pipeline.chunks, stages=stages, order=pipeline.order, cause=cause
        )


class StageCounts(NamedTuple):
    """The number of virtual stages of a pipeline, the largest number on one rank (`chunks`), and each rank's actions
    for a schedule from a file (() for a named schedule)."""

    stages: int
    chunks: int
    order: tuple[str, ...] = ()


def _pipeline(method: Node, schedule: Schedule, ranks: int, draft: Draft) -> StageCounts | None:
    args = method.node("args")
    arg = args.parts[0] if args is not None and args.parts else None
    if schedule.name == "csv":
        return _schedule_from_file(method, arg, ranks, draft)
    if arg is None:
        return StageCounts(ranks * schedule.chunks, schedule.chunks)
    if isinstance(arg, Node) and arg.kind == "named" and schedule.free_chunks:
        word = arg.parts[0]
        assert isinstance(word, Word)
        known = draft.one_of(word, ("chunks",), "an argument")
        open_ = draft.free(arg.parts[1], "the number of chunks")
        chunks = draft.integer(arg.parts[1]) if known and not open_ else None
        return StageCounts(ranks * chunks, chunks) if chunks else None
    takes = "only `chunks = N`" if schedule.free_chunks else "no argument"
    draft.report("E0108", arg.span, f"`{schedule.name}` takes {takes}")
    return None


def _schedule_from_file(method: Node, arg: Node | Word | None, ranks: int, draft: Draft) -> StageCounts | None:
    if not isinstance(arg, Word) or arg.kind != "STRING":
        example = 'such as csv("schedule.csv")'
        draft.report("E0108", (arg or method).span, "`csv` takes the name of a file", help=example)
        return None
    from planc.language.read_schedule_csv import read_schedule

    order = read_schedule(arg, ranks, draft)
    return None if order is None else _of_order(order)


def _of_order(order: tuple[str, ...]) -> StageCounts:
    from planc.pipeline import csv_schedule

    held = [csv_schedule.stages(order, rank) for rank in range(len(order))]
    return StageCounts(sum(map(len, held)), max(map(len, held)), order)


def even(layers: int, count: int) -> tuple[tuple[int, int], ...]:
    """Return the layer range (first, last + 1) of each of `count` stages of nearly equal length.

    If `layers` does not divide evenly, the first stages get one layer more, because the last stage also has the output.
    """
    base, extra = divmod(layers, count)
    sizes = [base + (i < extra) for i in range(count)]
    return _ranges(sizes)


def _stage_ranges(stages: Node | None, count: int, draft: Draft) -> tuple[tuple[int, int], ...] | None:
    """Return the layer range (first, last + 1) of each virtual stage from `[embed + 7, 2 x 9 layers, 7 + head]`.
    `embed` must be in the first stage and `head` in the last."""
    assert stages is not None and draft.model is not None
    sizes: list[int] = []
    all_stages = [part for part in stages.parts if isinstance(part, Node)]
    misplaced = empty = False
    for stage in all_stages:
        ends = [w.text for part in stage.nodes("part") for w in part.words("NAME")]
        misplaced |= "embed" in ends and stage is not all_stages[0]
        misplaced |= "head" in ends and stage is not all_stages[-1]
        misplaced |= len(ends) != len(set(ends))
        for word in (w for part in stage.nodes("part") for w in part.words("NAME")):
            draft.one_of(word, ("embed", "head"), "a part of a stage")
        if any(len(w.text) > 6 for w in stage.all_words() if w.kind == "INT"):
            draft.report("E0401", stage.span, "more layers or stages than any pipeline has")
            return None
        times, layers = _count_and_layers(stage)
        sizes += [layers] * min(times, MOST_STAGES)
        empty |= not layers and not ends
    if misplaced:
        draft.report("E0401", stages.span, "`embed` belongs to the first stage and `head` to the last, once each")
        return None
    if len(sizes) != count or sum(sizes) != draft.model.layers or empty:
        draft.report(
            "E0401",
            stages.span,
            f"the stages hold {sum(sizes)} layers in {len(sizes)} stages{', one without any' if empty else ''};"
            f" the model has {draft.model.layers} layers and the pipeline {count} stages",
            help=f"an even split: {_even_text(draft, count)}",
            fix=Fix("split evenly", (Edit(stages.span, _even_text(draft, count)),)),
        )
        return None
    return _ranges(sizes)


def _count_and_layers(stage: Node) -> tuple[int, int]:
    """Return (stages, layers of each): (2, 9) for `2 x 9 layers`, (1, 7) for `embed + 7`."""
    if stage.kind == "same_stages":
        count, layers = (int(w.text) for w in stage.words("INT"))
        return count, layers
    return 1, sum(int(w.text) for part in stage.nodes("part") for w in part.words("INT"))


def _even_text(draft: Draft, count: int) -> str:
    assert draft.model is not None
    return f"[{', '.join(_stage_texts(even(draft.model.layers, count)))}]"


def _stage_texts(stages: tuple[tuple[int, int], ...]) -> list[str]:
    sizes = [str(b - a) for a, b in stages]
    return [f"embed + {sizes[0]}", *sizes[1:-1], f"{sizes[-1]} + head"] if len(sizes) > 1 else sizes


def _ranges(sizes: list[int]) -> tuple[tuple[int, int], ...]:
    bounds = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    return tuple(itertools.pairwise(bounds))
