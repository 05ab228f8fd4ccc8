"""Emits the conversion of linear layers to torchao's float8 layers."""

from __future__ import annotations

from collections.abc import Iterator

from planc.backends.common.refusal import Refusal
from planc.backends.common.source_writer import because, call, fill, lines
from planc.backends.cuda.analysis.module_placements import Boundary, relative
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.costing.compute.quantize import quantized
from planc.diag.quoting import python_string
from planc.ir.model import EXPERTS, Op
from planc.ir.plan import Quantize
from planc.ir.sharding import Sharded

RECIPES = {"": "tensorwise", "tensorwise": "tensorwise", "rowwise": "rowwise"}
"""A plan's scaling granularity, and torchao's recipe name; torchao's default is tensorwise."""


def functions(roles: AxisRoles) -> str:
    """Emits apply_float8, which converts linear layers to float8; "" if the plan quantizes nothing."""
    if not roles.plan.quantize:
        return ""
    return fill(APPLY, sentences="\n".join(_sentence(roles.sharded, q) for q in roles.plan.quantize))


APPLY = '''
def apply_float8(model: nn.Module) -> None:
    """Convert linear layers to float8: they cast inputs, weights and gradients, and multiply in float8."""
    <sentences>
'''


def _sentence(sharded: Sharded, q: Quantize) -> str:
    blocks = dict.fromkeys(relative(op.module) for kind in sharded.model.blocks for op in _ops(sharded, q, kind))
    outside = [op.module for kind in ("first", "last") for op in _ops(sharded, q, kind)]
    return lines(
        because(q.cause),
        f'config = Float8LinearConfig.from_recipe_name("{RECIPES[q.recipe]}")',
        fill(
            BLOCKS,
            narrow=call("narrow = {", [python_string(path) for path in blocks], depth=1),
            chosen=_chosen(q),
        )
        if blocks
        else "",
        *(fill(OUTSIDE, path=path) for path in outside),
    )


BLOCKS = """
<narrow>
<chosen>
    convert_to_float8_training(block, module_filter_fn=lambda module, path: path in narrow, config=config)
"""

OUTSIDE = """
if model.<path> is not None:
    model.<path> = convert_to_float8_training(model.<path>, config=config)
"""


def _chosen(q: Quantize) -> str:
    """Emits the `for` line over the blocks that a `quantize` sentence converts."""
    if not q.kept_layers:
        return "for block in model.layers.values():"
    kept = [f'"{n}"' for begin, end in q.kept_layers for n in range(begin, end)]
    return lines(
        call("wide = {", kept, depth=1),
        "for block in (block for number, block in model.layers.items() if number not in wide):",
    )


def _ops(sharded: Sharded, q: Quantize, section: str) -> Iterator[Op]:
    for o in sharded.ops.get(section, ()):
        if quantized(sharded.plan, o.op) is q:
            yield o.op


def refused(sharded: Sharded, roles: AxisRoles) -> Iterator[Refusal]:
    """Refuses a `quantize` sentence that torchao cannot run: it only has float8 per tensor or row, in bf16 models."""
    for q in sharded.plan.quantize:
        if q.dtype != "float8" or q.tile or q.recipe not in RECIPES:
            yield q.cause, "torchao trains linear layers in float8 by tensor or by row", "`float8(rowwise)`"
        elif sharded.plan.precision.compute != "bf16":
            yield q.cause, f"a float8 matmul returns bf16, not {sharded.plan.precision.compute}", "`compute bf16`"
        else:
            yield from _modules(sharded, roles, q)


def _modules(sharded: Sharded, roles: AxisRoles, q: Quantize) -> Iterator[Refusal]:
    for section, ops in sharded.ops.items():
        for o in ops:
            if quantized(sharded.plan, o.op) is not q:
                continue
            if o.op.region == EXPERTS:
                yield q.cause, f"{o.op.name} multiplies the rows of all experts at once", "leave the experts in bf16"
                return
            if section == "last" and sharded.tied:
                yield q.cause, f"{o.op.name} multiplies by the embedding's weight", "leave the head in bf16"
                return
            b = Boundary(o, section, sharded, roles)
            if not b.linear:
                yield q.cause, f"{o.op.name} is not a linear layer of its own", "name linear layers only"
                return
            if b.rows or b.weight.inner:
                what = f"tensor parallelism shards {b.rows[0] if b.rows else 'inside a dim'} at {o.op.name}"
                yield q.cause, what, "shard heads, ffn or vocab, or leave the op in bf16"
                return
