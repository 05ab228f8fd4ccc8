"""`quantize OP, ... as float8(RECIPE) [except OP, ... [layers A..B]]`: matmuls in a narrower dtype."""

from __future__ import annotations

from planc.ir.plan import Quantize
from planc.language.draft import Draft
from planc.language.op_names import read_op_names
from planc.language.options import Option, method_name, read_options
from planc.syntax.tree import Node, Sentence, Word

VERBS = ("quantize",)
ORDER = 5

RECIPES = Option(words=("rowwise", "tensorwise", "blockwise"))
OPTIONS = {"float8": {"recipe": RECIPES, "tile": Option()}, "int8": {"tile": Option()}, "float4": {}}


def read(sentence: Sentence, draft: Draft) -> None:
    method = sentence.node.node("method")
    assert method is not None
    dtype = method_name(method, tuple(OPTIONS), "a narrow dtype", draft)
    options = read_options(method, OPTIONS[dtype], draft) if dtype else None
    spared = sentence.node.node("except_ops", "except_layers")
    ops = matmuls_named(sentence.names(0), draft)
    kept = matmuls_named(spared.nodes("names")[0].words() if spared and spared.kind == "except_ops" else [], draft)
    layers = read_layers(spared, draft) if spared else ()
    if dtype is None or options is None or ops is None or kept is None or layers is None:
        return
    draft.quantize.append(
        Quantize(
            ops=ops,
            dtype=dtype,
            recipe=str(options.get("recipe", "")),
            tile=int(options.get("tile", 0)),
            kept=kept,
            kept_layers=layers,
            cause=draft.cause(sentence),
        )
    )


def matmuls_named(words: list[Word], draft: Draft) -> tuple[str, ...] | None:
    """Return the names or prefixes of the model's matmuls that `words` mean; None (reported) if a word matches none."""
    if draft.model is None:
        return None
    matmuls = [op for ops in draft.model.ops.values() for op in ops if op.kind == "matmul"]
    return read_op_names(words, matmuls, f"a matmul of {draft.model.name}", draft)


def read_layers(spared: Node, draft: Draft) -> tuple[tuple[int, int], ...] | None:
    """Return the layer ranges after `except`, each as (first, last + 1): ((0, 3), (31, 32)) for `layers 0..2, 31`. None
    (reported) if a range is outside the model."""
    ranges = spared.node("ranges")
    if draft.model is None:
        return None
    found = []
    for one in ranges.nodes("range") if ranges else ():
        bounds = [draft.integer(w, minimum=0) for w in one.words("INT")]
        if None in bounds:
            return None
        begin, end = int(bounds[0] or 0), int(bounds[-1] or 0) + 1
        if not begin < end <= draft.model.layers:
            last = draft.model.layers - 1
            draft.report("E0108", one.span, f"{draft.model.name} has layers 0..{last}", help="first..last, inclusive")
            return None
        found.append((begin, end))
    return tuple(found)
