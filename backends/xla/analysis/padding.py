"""Parameters whose dims do not divide evenly: XLA stores equal shards of arrays, so they are padded.

The step computes with the unpadded parameters, since XLA shards arrays of any length inside a program. The padding is
zero and stays zero.
"""

from __future__ import annotations

from math import lcm, prod

from planc.backends.xla.analysis.layouts import Use, param_spec
from planc.backends.xla.analysis.mesh_factors import atoms
from planc.ir.model import EXPERTS
from planc.ir.plan import Plan
from planc.ir.sharding import ParamSharding, Sharded

USES: tuple[Use, ...] = ("used", "params", "grads", "optimizer")


def stored_shape(plan: Plan, p: ParamSharding) -> tuple[int, ...]:
    """Return the padded shape of one stored layer of `p`: each dim is a multiple of the number of its shards."""
    shape = plan.model.shape(p.param)
    if p.param.region == EXPERTS:
        return shape
    sizes = {a.name: a.size for a in atoms(plan)}
    specs = [param_spec(plan, p, use) for use in USES]
    parts = [lcm(*(prod(sizes[a] for a in spec[i]) for spec in specs)) for i in range(len(shape))]
    return tuple(n + -n % ranks for n, ranks in zip(shape, parts, strict=True))


def padded(sharded: Sharded) -> dict[str, tuple[int, ...]]:
    """Return the stored shapes of the padded parameters, by name."""
    found = {p.param.name: stored_shape(sharded.plan, p) for p in sharded.params}
    return {name: shape for name, shape in found.items() if shape != sharded.model.shape(sharded.model.param[name])}


def waste(sharded: Sharded, name: str) -> float:
    """Return the fraction by which padding enlarges parameter `name`."""
    return prod(padded(sharded)[name]) / prod(sharded.model.shape(sharded.model.param[name])) - 1
