"""DTensor all-reduces the absolute maxima for float8 scales, in fp64, if tensor parallelism shards the reduced dim.

torchao's linear layers cast both inputs of their three matmuls (output, dgrad, wgrad), each scaled by its maximum over
a row or the whole tensor. If tensor parallelism shards a dim of this maximum, each rank has only the maximum of its
shard. A recompute repeats the layer's full forward, because its `autograd.Function` saves tensors at the end.

Source: torchao 0.18, `float8_linear.py` (`matmul_with_hp_or_float8_args`) and `float8_utils.py` (`amax_to_scale`, which
works in float64).
"""

from __future__ import annotations

from collections.abc import Iterator

from planc.backends.cuda.analysis.module_placements import Boundary
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.rules.rule import Rows
from planc.costing.compute.quantize import quantized
from planc.ir.collective import DTYPE_BYTES, Collective, Phase
from planc.ir.plan import Quantize
from planc.ir.sharding import Layout
from planc.sharding.local import local_elements
from planc.sharding.recompute import names_op
from planc.sharding.stage_assignment import microbatches_each, sections_on, virtual_stages

NAME = "all_reduce_float8_scales"

Maxima = list[tuple[Phase, int]]
"""The phase of each all-reduce, and the number of maxima in it."""


def apply(roles: AxisRoles, rows: Rows) -> Rows:
    if not roles.tensor or not roles.plan.quantize:
        return rows
    return (*rows, *(new for stage in range(roles.plan.pipeline) for new in _of_stage(roles, stage)))


def _of_stage(roles: AxisRoles, stage: int) -> Iterator[Collective]:
    plan = roles.plan
    for section in sections_on(plan, stage):
        for o in roles.sharded.ops.get(section, ()):
            sentence = quantized(plan, o.op)
            if sentence is None:
                continue
            boundary = Boundary(o, section, roles.sharded, roles)
            for phase, maxima in _maxima(boundary, sentence):
                yield Collective(
                    op="all_reduce",
                    axes=roles.tensor,
                    group_size=plan.mesh.size(*roles.tensor),
                    stage=stage,
                    phase=phase,
                    carries="activation",
                    tensor=f"{o.op.name} maxima",
                    section=section,
                    dtype="fp64",
                    per="microbatch",
                    count=_layers(roles, stage, section, sentence, replayed=phase == "recompute")
                    * microbatches_each(plan),
                    buffer_bytes=maxima * DTYPE_BYTES["fp64"],
                    realised_by=(NAME,),
                    cause=sentence.cause,
                )


def _maxima(b: Boundary, sentence: Quantize) -> Maxima:
    """Returns the all-reduces of one linear layer in one microbatch; [] if the layer's weight is not sharded.

    If the weight's input dim is sharded, the forward matmul sums over a sharded dim; if its output dim is, the dgrad.
    """
    if b.weight.dim is None:
        return []
    outputs = b.weight.dim == 0
    if sentence.recipe == "rowwise":
        rows, whole = _rows(b), b.sharded.model.param[b.o.op.params[0]].shape_dims[1 if outputs else 0]
        width = local_elements(b.sharded.plan, whole, {})
        found: Maxima = [("backward" if outputs else "forward", n) for n in (rows, round(width))]
    else:
        found = [("forward", 1), ("backward", 1), ("backward", 1), ("backward" if outputs else "forward", 1)]
    again = _again(b)
    return [*found, *(("recompute", n) for phase, n in found if phase == "forward" and again)]


def _rows(b: Boundary) -> int:
    """Returns the number of local tokens of a microbatch."""
    layout: Layout = {d: axes for d, axes in b.o.layout.items() if d in ("batch", "sequence")}
    return round(local_elements(b.sharded.plan, ("batch", "sequence"), layout))


def _again(b: Boundary) -> bool:
    """True if the backward recomputes the layer of `b`."""
    recompute = b.sharded.plan.recompute
    named = recompute.blocks or any(names_op(word, b.o.op) for word in recompute.ops)
    kept = any(names_op(word, b.o.op) for word in recompute.kept)
    return bool(b.section in b.sharded.model.blocks and named and not kept)


def _layers(roles: AxisRoles, stage: int, section: str, sentence: Quantize, *, replayed: bool) -> int:
    """Returns the number of blocks of kind `section` on a stage that use float8; with `replayed`, recomputed ones."""
    plan = roles.plan
    if section not in plan.model.blocks:
        return 1
    wide = {n for begin, end in sentence.kept_layers for n in range(begin, end)}
    layers = (n for v in virtual_stages(plan, stage) for n in range(*plan.stages[v]) if n not in wide)
    every = plan.recompute.every if replayed else 1
    return sum(plan.model.layers_of(section, n, n + 1) for n in layers if n % every == 0)
