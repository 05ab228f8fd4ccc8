"""`split layers over AXIS as SCHEDULE [stages [...]]`: the pipeline."""

from __future__ import annotations

import itertools

from planc.diag.diagnostic import Edit, Fix
from planc.ir.plan import Split
from planc.strategies.draft import Draft
from planc.syntax.tree import Node, Sentence, Word

VERBS = ("split",)
ORDER = 5

MOST_STAGES = 4096

CHUNKS: dict[str, tuple[int, bool]] = {
    "gpipe": (1, False),
    "1f1b": (1, False),
    "interleaved_1f1b": (2, True),
    "looped_bfs": (2, True),
}
"""Schedules: virtual stages per rank unless said otherwise, and whether that may be changed."""


def read(sentence: Sentence, draft: Draft) -> None:
    node = sentence.node
    words = node.words("NAME")
    draft.one_of(words[0], ("layers",), "a dim that is split into stages")
    axes = draft.axes([words[1]])
    method = node.node("method")
    assert method is not None
    schedule = draft.one_of(method.words()[0], CHUNKS, "a pipeline schedule")
    if axes is None or schedule is None or draft.mesh is None or draft.model is None:
        return
    chunks = _chunks(method, schedule, draft)
    if chunks is None:
        return
    count = draft.mesh.size(axes[0]) * chunks
    if count > min(draft.model.layers, MOST_STAGES):
        draft.report(
            "E0401",
            sentence.span,
            f"{draft.model.layers} layers cannot fill {count} stages ({axes[0]} {count // chunks} x {chunks})",
            help=f"at most {min(draft.model.layers, MOST_STAGES)} stages",
        )
        return
    stages = _written(node.node("stages"), count, draft) if node.node("stages") else _even(draft, count)
    if stages is not None:
        draft.split = Split(axis=axes[0], schedule=schedule, chunks=chunks, stages=stages, cause=draft.cause(sentence))


def _chunks(method: Node, schedule: str, draft: Draft) -> int | None:
    default, free = CHUNKS[schedule]
    args = method.node("args")
    if args is None or not args.parts:
        return default
    arg = args.parts[0]
    if isinstance(arg, Node) and arg.kind == "named" and free:
        word = arg.parts[0]
        assert isinstance(word, Word)
        return draft.integer(arg.parts[1]) if draft.one_of(word, ("chunks",), "an argument") else None
    draft.report("E0108", args.span, f"`{schedule}` takes {'only `chunks = N`' if free else 'no argument'}")
    return None


def _even(draft: Draft, count: int) -> tuple[tuple[int, int], ...]:
    """As even as it goes; the first stages take one layer more, the last ones also hold the head."""
    assert draft.model is not None
    base, extra = divmod(draft.model.layers, count)
    sizes = [base + (i < extra) for i in range(count)]
    return _ranges(sizes)


def _written(stages: Node | None, count: int, draft: Draft) -> tuple[tuple[int, int], ...] | None:
    """`[embed + 7, 9 x 2, 7 + head]`: layers per virtual stage; `embed` and `head` are the ends."""
    assert stages is not None and draft.model is not None
    sizes: list[int] = []
    all_stages = stages.nodes("stage")
    misplaced = False
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
        numbers = [int(w.text) for part in stage.nodes("part") for w in part.words("INT")]
        repeat = stage.words("INT")
        sizes += [sum(numbers)] * min(int(repeat[0].text) if repeat else 1, MOST_STAGES)
    if misplaced:
        draft.report("E0401", stages.span, "`embed` belongs to the first stage and `head` to the last, once each")
        return None
    if len(sizes) != count or sum(sizes) != draft.model.layers or 0 in sizes:
        draft.report(
            "E0401",
            stages.span,
            f"the stages hold {sum(sizes)} layers in {len(sizes)} stages{', one without any' if 0 in sizes else ''};"
            f" the model has {draft.model.layers} layers and the pipeline {count} stages",
            help=f"an even split: {_even_text(draft, count)}",
            fix=Fix("split evenly", (Edit(stages.span, _even_text(draft, count)),)),
        )
        return None
    return _ranges(sizes)


def _even_text(draft: Draft, count: int) -> str:
    return f"[{', '.join(_parts(_even(draft, count)))}]"


def _parts(stages: tuple[tuple[int, int], ...]) -> list[str]:
    sizes = [str(b - a) for a, b in stages]
    return [f"embed + {sizes[0]}", *sizes[1:-1], f"{sizes[-1]} + head"] if len(sizes) > 1 else sizes


def _ranges(sizes: list[int]) -> tuple[tuple[int, int], ...]:
    bounds = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    return tuple(itertools.pairwise(bounds))
