"""Matmuls in a narrow dtype: the recipe of each parameter, and the layers that keep the compute dtype."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, pairwise

from planc.costing.compute.quantize import quantized
from planc.ir.plan import Plan, Quantize
from planc.ir.sharding import OpSharding, Sharded

RECIPES = {
    ("float8", ""): "float8_tensorwise",
    ("float8", "tensorwise"): "float8_tensorwise",
    ("float8", "rowwise"): "float8_rowwise",
    ("int8", ""): "int8_rowwise",
}
"""A sentence's dtype and recipe, and the name of the program's. What float8 means is torchao's, as on the cuda target;
int8 shares its scales by row, as AQT does for MaxText."""

Segment = tuple[int, int, tuple[Quantize, ...]]
"""The numbers of the first layer of some and one past the last, and the sentences that do not hold in them."""


def recipe(sentence: Quantize) -> str | None:
    """The program's recipe of a `sentence`; None for one that it has not."""
    return None if sentence.tile else RECIPES.get((sentence.dtype, sentence.recipe))


def products(sharded: Sharded) -> Iterator[tuple[OpSharding, str, Quantize]]:
    """Every matmul of `sharded` in a narrow dtype, its section, and the sentence that says so."""
    for section, ops in sharded.ops.items():
        for o in ops:
            if (sentence := quantized(sharded.plan, o.op)) is not None:
                yield o, section, sentence


def narrow_params(sharded: Sharded) -> dict[str, Quantize]:
    """The parameters that `sharded` multiplies by in a narrow dtype, each with its sentence."""
    return {o.op.params[0]: sentence for o, _, sentence in products(sharded)}


def params_of(sharded: Sharded, sentence: Quantize) -> tuple[str, ...]:
    """The parameters of blocks that a `sentence` is about."""
    blocks = sharded.model.blocks
    found = (o.op.params[0] for o, section, of in products(sharded) if of is sentence and section in blocks)
    return tuple(dict.fromkeys(found))


def segments(plan: Plan) -> tuple[Segment, ...]:
    """Layers of `plan`, in order, that keep the same matmuls wide; () where no layer does."""
    if not any(q.kept_layers for q in plan.quantize):
        return ()
    bounds = {0, plan.model.layers, *chain.from_iterable(chain.from_iterable(q.kept_layers for q in plan.quantize))}
    return tuple((begin, end, tuple(_wide_in(plan, begin))) for begin, end in pairwise(sorted(bounds)))


def _wide_in(plan: Plan, layer: int) -> Iterator[Quantize]:
    for q in plan.quantize:
        if any(begin <= layer < end for begin, end in q.kept_layers):
            yield q
