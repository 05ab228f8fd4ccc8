"""The tensor dimension on which fully_shard shards a parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planc.backends.cuda.analysis.placements import Placement, placement
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.ir.model import EXPERTS
from planc.ir.sharding import OpSharding, ParamSharding, Sharded

if TYPE_CHECKING:
    from planc.ir.backend import StateLayout


def state_layout(sharded: Sharded) -> StateLayout:
    """The layout of state in the program of `sharded`: parameters, gradients and optimizer state all have the
    optimizer's."""
    roles = AxisRoles(sharded)
    return lambda p, _noun: (p.stored["optimizer"], stored_dim(roles, p))


def stored_dim(roles: AxisRoles, p: ParamSharding) -> int:
    """Index of the storage dimension that `p` is stored divided on.

    It is the one a sentence names, else the first; the next one where tensor parallelism divides inside the first, as
    DTensor gathers a dimension wrongly that is divided inside by one axis and stored over another.
    """
    if p.on_dim is not None:
        return p.on_dim
    if p.param.region == EXPERTS and roles.experts.apart:
        return _experts_dim(roles, p)
    inside = used(roles, p)
    return 1 if inside.inner and inside.dim == 0 and len(p.param.shape_dims) > 1 else 0


def stored_over(roles: AxisRoles, p: ParamSharding) -> tuple[str, ...]:
    """The axes that fully_shard divides parameter `p` over."""
    apart = p.param.region == EXPERTS and roles.experts.apart
    return roles.experts.shard if apart else roles.shard


def _experts_dim(roles: AxisRoles, p: ParamSharding) -> int:
    """The experts themselves if there is one for each rank, else the first dimension inside them that divides."""
    mesh, parts = roles.plan.mesh, roles.plan.mesh.size(*roles.experts.shard)
    local = [n // mesh.size(*axes) for n, axes in zip(roles.sharded.model.shape(p.param), p.compute, strict=True)]
    if local[0] >= parts:
        return 0
    return next((dim for dim, length in enumerate(local) if dim and length % parts == 0), 0)


def used(roles: AxisRoles, p: ParamSharding) -> Placement:
    """The placement of parameter `p` under tensor parallelism while it is used."""
    return placement(user_of(roles, p).layout, p.param.shape_dims, roles.sharded.model.sizes, roles.tensor)


def user_of(roles: AxisRoles, p: ParamSharding) -> OpSharding:
    """The first op that uses parameter `p`."""
    return next(o for ops in roles.sharded.ops.values() for o in ops if p.param.name in o.op.params)
