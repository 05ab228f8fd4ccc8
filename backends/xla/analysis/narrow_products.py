"""Low-precision matmuls: the recipe of each parameter, and the layers that stay in the compute dtype."""

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
"""Maps the dtype and recipe of a sentence to the name in the emitted program. float8 means torchao's, as on the cuda
target; int8 has scales per row, as AQT in MaxText."""

Segment = tuple[int, int, tuple[Quantize, ...]]
"""The first layer and one past the last of a run of layers, and the sentences that do not apply to them."""


def recipe(sentence: Quantize) -> str | None:
    """Return the emitted name of the recipe (dtype and scaling) of `sentence`; None if the target has none such."""
    return None if sentence.tile else RECIPES.get((sentence.dtype, sentence.recipe))


def products(sharded: Sharded) -> Iterator[tuple[OpSharding, str, Quantize]]:
    """Yield each low-precision matmul of `sharded`, its section (part of the model) and its `quantize` sentence."""
    for section, ops in sharded.ops.items():
        for o in ops:
            if (sentence := quantized(sharded.plan, o.op)) is not None:
                yield o, section, sentence


def narrow_params(sharded: Sharded) -> dict[str, Quantize]:
    """Return the weights of low-precision matmuls in `sharded`, by name, each with the plan's `quantize` sentence."""
    return {o.op.params[0]: sentence for o, _, sentence in products(sharded)}


def params_of(sharded: Sharded, sentence: Quantize) -> tuple[str, ...]:
    """Return the names of the parameters of the layers in `sharded` that `sentence` quantizes."""
    blocks = sharded.model.blocks
    found = (o.op.params[0] for o, section, of in products(sharded) if of is sentence and section in blocks)
    return tuple(dict.fromkeys(found))


def segments(plan: Plan) -> tuple[Segment, ...]:
    """Return the runs of layers of `plan` with the same matmuls in the compute dtype; () if all layers are alike."""
    applied = {id(quantized(plan, op)) for ops in plan.model.ops.values() for op in ops} if plan.quantize else set()
    partial = [q for q in plan.quantize if q.kept_layers and id(q) in applied]
    if not partial:
        return ()
    bounds = {0, plan.model.layers, *chain.from_iterable(chain.from_iterable(q.kept_layers for q in partial))}
    return tuple((begin, end, tuple(_wide_in(partial, begin))) for begin, end in pairwise(sorted(bounds)))


def _wide_in(partial: list[Quantize], layer: int) -> Iterator[Quantize]:
    for q in partial:
        if any(begin <= layer < end for begin, end in q.kept_layers):
            yield q
