"""The index intervals of each parameter that a device holds between steps, as a checkpoint stores them.

Tensor parallelism splits a dimension first; the storage layout (such as FSDP) then splits the result. Uneven dimensions
are split as by `torch.chunk`: the first parts are full, the last one is short or empty.
"""

from __future__ import annotations

from functools import cached_property
from math import prod

from planc.diag.fast_dataclass import dataclass
from planc.ir.backend import StateLayout
from planc.ir.cache import cached_on
from planc.ir.mesh import Axis
from planc.ir.model import Param
from planc.ir.plan import Noun, Plan
from planc.ir.sharding import ParamSharding, Sharded
from planc.sharding.stage_assignment import virtual_stages
from planc.sharding.transfer_core import MeshAxis, TensorLayout, runs_of

Runs = tuple[tuple[int, int], ...]
"""Half-open intervals (first index, one past the last), in order."""
Cut = tuple[tuple[int, int, tuple[Axis, ...]], ...]
"""For each named dim of a storage dimension: its length, its stride in elements, the axes that shard it."""


def declared_layout(p: ParamSharding, noun: Noun) -> tuple[tuple[str, ...], int | None]:
    """Return the axes over which the plan stores `noun` (params, grads or optimizer) of parameter `p`, and the index of
    the dimension that they shard, by default 0.

    Without a sentence for params, stored weights have the layout of the optimizer state (as master weights).
    """
    return p.stored[noun] or (p.stored["optimizer"] if noun == "params" else ()), p.on_dim or 0


@dataclass(frozen=True)
class StoredLayout:
    """The layout between steps of a parameter's weights or optimizer state. In compute the axes `used` shard each
    dimension; in storage the axes `stored` then shard dimension `on_dim`."""

    used: tuple[Cut, ...]
    stored: tuple[Axis, ...]
    on_dim: int | None

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """The mesh axes that determine which shard a device holds."""
        inside = [a for cuts in self.used for _, _, axes in cuts for a in axes]
        return tuple(dict.fromkeys([*inside, *(self.stored if self.on_dim is not None else ())]))

    @cached_property
    def holders(self) -> dict[Axis, int]:
        """For each axis, at most how many places along it have a shard that is not empty: the first ones."""
        found: dict[Axis, int] = {}
        for dim, cuts in enumerate(self.used):
            whole = prod(_largest_part(length, axes, found) for length, _, axes in cuts)
            if dim == self.on_dim and self.stored:
                _note_storing(whole, self.stored, found)
        return found

    def piece(self, rank: int) -> tuple[Runs, ...]:
        """Return, for each storage dimension, the intervals of indices that `rank` holds."""
        return tuple([self.on_dim_of(dim, rank) for dim in range(len(self.used))])

    @cached_property
    def axes_of(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each storage dimension, the stride and the size, in ranks, of the axes that determine the intervals."""
        inside = [[a for _, _, axes in cuts for a in axes] for cuts in self.used]
        more = [self.stored if dim == self.on_dim else () for dim in range(len(self.used))]
        return tuple(tuple((a.stride, a.size) for a in (*mine, *own)) for mine, own in zip(inside, more, strict=True))

    @cached_property
    def _found(self) -> dict[tuple[int, ...], Runs]:
        """Intervals by dimension and the coordinates along its axes."""
        return {}

    def on_dim_of(self, dim: int, rank: int) -> Runs:
        """Return the intervals of indices of storage dimension `dim` that `rank` holds."""
        key = (dim, *[rank // stride % size for stride, size in self.axes_of[dim]])
        if (runs := self._found.get(key)) is None:
            runs = self._found[key] = runs_of(self.plain, dim, rank)
        return runs

    @cached_property
    def plain(self) -> TensorLayout:
        """This layout as plain tuples, on every stage of a pipeline."""
        used = tuple(tuple((n, inside, _pairs(axes)) for n, inside, axes in cuts) for cuts in self.used)
        on_dim = self.on_dim if self.on_dim is not None and self.stored else -1
        return TensorLayout(used, _pairs(self.stored) if on_dim >= 0 else (), on_dim)


def held(sharded: Sharded, layout: StoredLayout, stages: tuple[int, ...]) -> TensorLayout:
    """Return `layout` as plain tuples, for a tensor that is on these pipeline `stages` of `sharded`."""
    split = sharded.plan.split
    axis = sharded.plan.mesh.axis(split.axis) if split else None
    return layout.plain._replace(stage=(axis.stride, axis.size) if axis else (1, 1), stages=stages)


def stages_of_layers(plan: Plan, param: Param) -> dict[int, tuple[int, ...]]:
    """Return the pipeline stages that have each layer's tensor of `param`, by layer; -1 for the embedding or head."""
    found: dict[int, list[int]] = {}
    for stage in range(plan.pipeline):
        for layer in _layers_on_stage(plan, param, stage):
            found.setdefault(layer, []).append(stage)
    return {layer: tuple(stages) for layer, stages in sorted(found.items())}


def stored_layout(sharded: Sharded, p: ParamSharding, noun: Noun, rest: StateLayout) -> StoredLayout:
    """Return the layout of `noun` (params, grads or optimizer) of parameter `p` between steps. `rest` is the function
    that returns the axes and the dimension of the storage sharding."""
    plan = sharded.plan
    user = next(o for ops in sharded.ops.values() for o in ops if p.param.name in o.op.params)
    over, dim = rest(p, noun)
    axes = plan.mesh.in_order(over)
    used = tuple(_cuts(plan, group, user.layout) for group in p.param.shape_dims)
    return StoredLayout(used, tuple(map(plan.mesh.axis, axes)), dim if axes else None)


def _cuts(plan: Plan, dims: tuple[str, ...], layout: dict[str, tuple[str, ...]]) -> Cut:
    sizes = [plan.model.sizes[d] for d in dims]
    axes = [tuple(map(plan.mesh.axis, plan.mesh.in_order(layout.get(d, ())))) for d in dims]
    return tuple((n, prod(sizes[i + 1 :]), axes[i]) for i, n in enumerate(sizes))


def layers_on_rank(plan: Plan, param: Param, rank: int) -> frozenset[int]:
    """Return the layers that have `param` and are on `rank`; {-1} for a parameter of the embedding or the head."""
    stage = plan.mesh.axis(plan.split.axis).place_of(rank) if plan.split else 0
    return _layers_on_stage(plan, param, stage)


@cached_on(lambda plan, param, stage: (plan.cache, (param.sections, stage)))
def _layers_on_stage(plan: Plan, param: Param, stage: int) -> frozenset[int]:
    held, kinds = virtual_stages(plan, stage), plan.model.kinds
    layers = {n for v in held for n in range(*plan.stages[v]) if kinds[n] in param.sections}
    ends = ("first" in param.sections and 0 in held) or ("last" in param.sections and len(plan.stages) - 1 in held)
    return frozenset(layers | ({-1} if ends and not set(param.sections) & set(kinds) else set()))


# Runs of indices.


def _pairs(axes: tuple[Axis, ...]) -> tuple[MeshAxis, ...]:
    return tuple((axis.stride, axis.size) for axis in axes)


def _largest_part(length: int, axes: tuple[Axis, ...], holders: dict[Axis, int]) -> int:
    """Return the length of the first part of range(`length`), which `axes` split one after the other; the number of
    parts that are not empty is noted in `holders`."""
    for axis in axes:
        each = -(-length // axis.size)
        holders[axis] = min(holders.get(axis, axis.size), -(-length // each))
        length = each
    return length


def _note_storing(length: int, axes: tuple[Axis, ...], holders: dict[Axis, int]) -> None:
    """Note in `holders` the places along each of `axes` with a part of range(`length`), which they split together."""
    inner = prod(axis.size for axis in axes)
    parts = -(-length // -(-length // inner)) if length else 0
    for axis in axes:
        inner //= axis.size
        holders[axis] = min(holders.get(axis, axis.size), -(-parts // inner))
        parts = parts if parts <= inner else inner


def length(runs: Runs) -> int:
    """Return the number of indices in the intervals `runs`."""
    if len(runs) == 1:
        return runs[0][1] - runs[0][0]
    return sum([b - a for a, b in runs])


def shared(one: Runs, other: Runs) -> int:
    """Return the number of indices that are in both `one` and `other`, two lists of sorted intervals."""
    if one == other:
        return length(one)
    total, i, j = 0, 0, 0
    while i < len(one) and j < len(other):
        total += max(0, min(one[i][1], other[j][1]) - max(one[i][0], other[j][0]))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return total
