"""Which dimension of a parameter fully_shard divides."""

from __future__ import annotations

from planc.ir.sharding import ParamSharding

from .placements import Placement, placement
from .roles import Roles


def stored_dim(roles: Roles, p: ParamSharding) -> int:
    """The one a sentence names, else the first; the next one where tensor parallelism divides inside the first.

    DTensor gathers a dimension wrongly that is divided inside by one axis and stored over another.
    """
    if p.on_dim is not None:
        return p.on_dim
    inside = used(roles, p)
    return 1 if inside.inner and inside.dim == 0 and len(p.param.shape_dims) > 1 else 0


def used(roles: Roles, p: ParamSharding) -> Placement:
    """How tensor parallelism divides a parameter while it is used."""
    user = next(o for ops in roles.sharded.ops.values() for o in ops if p.param.name in o.op.params)
    return placement(user.layout, p.param.shape_dims, roles.sharded.model.sizes, roles.tensor)
