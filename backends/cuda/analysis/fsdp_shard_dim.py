"""Finds the tensor dim that fully_shard shards a parameter on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planc.backends.cuda.analysis.placements import Placement, placement
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.ir.model import EXPERTS
from planc.ir.sharding import OpSharding, ParamSharding, Sharded

if TYPE_CHECKING:
    from planc.ir.backend import StateLayout


def state_layout(sharded: Sharded) -> StateLayout:
    """Returns the layout of state in the program of `sharded`, as a function of the parameter: the axes that shard it,
    and its sharded dim. Parameters, gradients and optimizer state have the same layout."""
    roles = AxisRoles(sharded)
    return lambda p, _noun: (p.stored["optimizer"], stored_dim(roles, p))


def stored_dim(roles: AxisRoles, p: ParamSharding) -> int:
    """Returns the index of the tensor dim on which FSDP shards `p`.

    The default is 0, or 1 if tensor parallelism shards dim 0 as a strided shard: DTensor gathers such a dim incorrectly
    if FSDP shards it too. A dim that the plan names takes precedence. Experts with their own FSDP group may use another
    dim (`_experts_dim`).
    """
    if p.on_dim is not None:
        return p.on_dim
    if p.param.region == EXPERTS and roles.experts.apart:
        return _experts_dim(roles, p)
    inside = used(roles, p)
    return 1 if inside.inner and inside.dim == 0 and len(p.param.shape_dims) > 1 else 0


def stored_over(roles: AxisRoles, p: ParamSharding) -> tuple[str, ...]:
    """Returns the axes that fully_shard shards parameter `p` over."""
    apart = p.param.region == EXPERTS and roles.experts.apart
    return roles.experts.shard if apart else roles.shard


def _experts_dim(roles: AxisRoles, p: ParamSharding) -> int:
    """Returns 0 if each FSDP rank gets an expert, else the first other dim that the number of ranks divides (or 0)."""
    mesh, parts = roles.plan.mesh, roles.plan.mesh.size(*roles.experts.shard)
    local = [n // mesh.size(*axes) for n, axes in zip(roles.sharded.model.shape(p.param), p.compute, strict=True)]
    if local[0] >= parts:
        return 0
    return next((dim for dim, length in enumerate(local) if dim and length % parts == 0), 0)


def used(roles: AxisRoles, p: ParamSharding) -> Placement:
    """Returns the placement in which the forward uses parameter `p` under tensor parallelism."""
    return placement(user_of(roles, p).layout, p.param.shape_dims, roles.sharded.model.sizes, roles.tensor)


def user_of(roles: AxisRoles, p: ParamSharding) -> OpSharding:
    """Returns the first op that uses parameter `p`."""
    return next(o for ops in roles.sharded.ops.values() for o in ops if p.param.name in o.op.params)
