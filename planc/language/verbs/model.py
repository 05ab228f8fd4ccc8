"""`model NAME` or `model NAME(layers = 4)`: the model, and sizes that differ from the published ones."""

from __future__ import annotations

from dataclasses import replace

from planc.catalog import build_model, model_names
from planc.language.draft import Draft
from planc.syntax.tree import Node, Sentence, Word

VERBS = ("model",)
ORDER = 1
SWITCHED_ON = {"mtp_layers": 0}
"""Sizes with a default of 0, which a plan may set."""


def read(sentence: Sentence, draft: Draft) -> None:
    call = sentence.node.node("call")
    assert call is not None
    word = call.words()[0]
    name = draft.one_of(word, model_names(), "a model of the catalog")
    if name is None:
        return
    published = build_model(name)
    changes = _changes(call.node("args"), published.sizes, draft)
    if changes is None:
        return
    try:
        model = build_model(name, changes) if changes else published
        draft.model = replace(model, cause=draft.cause(sentence))
    except ValueError as error:
        draft.report("E0103", call.span, f"these sizes make no model: {error}")


def _changes(args: Node | None, sizes: dict[str, int], draft: Draft) -> dict[str, int] | None:
    changes: dict[str, int] = {}
    for arg in args.parts if args else ():
        if isinstance(arg, Word) or arg.kind != "named":
            draft.report("E0102", arg.span, "a size is given by name", help="such as `layers = 4`")
            return None
        word, value = arg.parts
        assert isinstance(word, Word)
        if word.text in changes:
            draft.report("E0107", word.span, f"`{word.text}` is given twice")
            return None
        dim = draft.one_of(word, {**sizes, **SWITCHED_ON}, "a size of this model")
        number = draft.integer(value)
        if dim is None or number is None:
            return None
        changes[dim] = number
    return changes
