"""Rule E0305 (error): the local sizes of a quantized matmul are not multiples of its quantization block."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

from planc.checks.edits import divisors
from planc.diag.diagnostic import Diagnostic, Related
from planc.diag.registry import Rule
from planc.ir.plan import Quantize
from planc.ir.sharding import OpSharding, Sharded
from planc.sharding.local import local_length

if TYPE_CHECKING:
    from planc.costing import CostedPlan

BLOCK = 128
"""Rows and columns that share a scale in a blockwise recipe (DeepSeek-V3, arXiv:2412.19437, section 3.3)."""
ROW = 16
"""torch's scaled matmul needs both dims of a matrix to be multiples of 16."""


def check(costed: CostedPlan) -> Iterator[Diagnostic]:
    from planc.costing.compute.quantize import quantized

    sharded = costed.sharded
    plan = sharded.plan
    reported = set()
    for ops in sharded.ops.values():
        for o in ops:
            quantize = quantized(plan, o.op)
            if o.op.kind != "matmul" or quantize is None:
                continue
            tile = quantize.tile or (BLOCK if quantize.recipe == "blockwise" else ROW)
            for dims in _matrix_dims(sharded, o):
                width = round(prod(local_length(plan, d, o.layout.get(d, ())) for d in dims))
                if width % tile == 0 or (dims, quantize.cause) in reported:
                    continue
                reported.add((dims, quantize.cause))
                yield _diagnostic(sharded, o, dims, width, tile, quantize)


def _matrix_dims(sharded: Sharded, o: OpSharding) -> list[tuple[str, ...]]:
    """Return the dims of the op's weight matrices, without experts. A dim is a tuple of names: it may be a product."""
    groups = [g for name in o.op.params for g in sharded.model.param[name].shape_dims if g != ("experts",)]
    return [g for g in groups if all(d in sharded.model.sizes for d in g)]


def _diagnostic(
    sharded: Sharded, o: OpSharding, dims: tuple[str, ...], width: int, tile: int, quantize: Quantize
) -> Diagnostic:
    plan = sharded.plan
    length = prod(plan.model.sizes[d] for d in dims)
    axes = [a for d in dims for a in o.layout.get(d, ())]
    legal = [n for n in divisors(length, 64) if length // n % tile == 0]
    cause = next((c for d in dims for a in axes if (c := plan.cause_of_shard(d, a, o.op.region))), None)
    over = f" over {', '.join(axes)} = {plan.mesh.size(*axes)} ranks" if axes else ""
    return Diagnostic(
        "E0305",
        f"{' x '.join(dims)} {length}{over}: {width} each, and {quantize.dtype} blocks of {tile} do not divide it in"
        f" {o.op.name}",
        quantize.cause.span,
        help=f"ranks that leave whole blocks: {', '.join(map(str, legal)) or 'none'}; or `except` the op",
        related=(Related(cause.span, "divided here"),) if cause else (),
    )


RULE = Rule("E0305", check=check)
