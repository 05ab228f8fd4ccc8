"""Rule W0306 (warning): the local width of a matmul wastes much of the hardware's tiles."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, prod
from typing import TYPE_CHECKING

from planc.checks.edits import divisors
from planc.checks.work import flops
from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule
from planc.ir.sharding import OpSharding, Sharded
from planc.sharding.local import local_length

if TYPE_CHECKING:
    from planc.costing import CostedPlan

TILE = 128
"""Columns of a matmul tile: NVIDIA's deep-learning performance guide on tile quantisation, the side of a TPU's systolic
array, and the block of common fp8 scalings."""
WASTE = 0.15
SHARE = 0.05
MIN_FLOPS_PER_S = 1e13
"""Slower chips are not accelerators and have no such tiles."""


def check(costed: CostedPlan) -> Iterator[Diagnostic]:
    sharded = costed.sharded
    plan = sharded.plan
    if max(plan.cluster.chip.flops_per_s.values()) < MIN_FLOPS_PER_S:
        return
    done = flops(sharded)
    total = sum(amount for _, amount in done)
    reported = set()
    for o, amount in done:
        dims = _divided(sharded, o)
        if o.op.kind != "matmul" or not dims or amount < SHARE * total:
            continue
        width = round(prod(local_length(plan, d, o.layout.get(d, ())) for d in dims))
        waste = 1 - width / (ceil(width / TILE) * TILE)
        dim = next(d for d in dims if o.layout.get(d))
        if waste < WASTE or (dim, width) in reported:
            continue
        reported.add((dim, width))
        axes = o.layout[dim]
        length = prod(plan.model.sizes[d] for d in dims)
        others = [plan.model.sizes.get(s.dim, 0) for s in plan.shards if axes[-1] in s.axes]
        legal = [n for n in divisors(length, 64) if length // n % TILE == 0 and not any(size % n for size in others)]
        cause = plan.cause_of_shard(dim, axes[0], o.op.region)
        yield Diagnostic(
            "W0306",
            f"{' x '.join(dims)} {length} over {', '.join(axes)} = {plan.mesh.size(*axes)} ranks: {width} each, no"
            f" multiple of {TILE}; {waste:.0%} of every tile of {o.op.name} is padding",
            cause.span if cause else plan.mesh.cause.span,
            help=f"sizes of {axes[-1]} that leave whole tiles: {', '.join(map(str, legal)) or 'none'}; 8-bit formats"
            " with blocks of 128 refuse the others",
        )


def _divided(sharded: Sharded, o: OpSharding) -> tuple[str, ...]:
    """Return the names of the dims of the weight's dim that is sharded (not experts); () if none is."""
    for name in o.op.params:
        for group in sharded.model.param[name].shape_dims:
            if group != ("experts",) and any(o.layout.get(d) for d in group):
                return group
    return ()


RULE = Rule("W0306", check=check)
