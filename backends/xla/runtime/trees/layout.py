"""The layout of one leaf of a user's tree from its named dims: that of the plan's parameters with these dims."""

from __future__ import annotations

from collections import Counter
from itertools import permutations, product
from math import prod
from typing import TYPE_CHECKING

from planc.backends.xla.analysis.layouts import Spec, largest_cut
from planc.backends.xla.analysis.mesh_factors import parts
from planc.backends.xla.runtime.trees.rules import LAYERS, UNNAMED, Groups
from planc.ir.cache import cached_on

if TYPE_CHECKING:
    from planc.ir.model import Model, Param
    from planc.ir.plan import Noun
    from planc.ir.sharding import ParamSharding, Sharded

Shape = tuple[int, ...]
Specs = dict[Spec, list[str]]
"""Possible layouts of a leaf, each with its origin: parameters of the plan's model, or candidate dims."""
Factors = tuple[tuple[int | str, ...] | None, ...]
"""For each array dim of a leaf, the sizes or names of the dims whose product it is; () for the stack of layers, None if
nothing is known."""


def specs_of(sharded: Sharded, noun: Noun, shape: Shape, groups: Groups, parameter: str = "") -> Specs:
    """Return the possible layouts of a leaf that stores `noun` under the plan in `sharded`. There are several if
    parameters with the leaf's dims differ in layout.

    Args:
        sharded: the plan with its layouts.
        noun: params, grads or optimizer.
        shape: the leaf's shape.
        groups: its named dims, one group per array dim.
        parameter: the name of the parameter whose layout to use; "" for all parameters with exactly these dims or, if
            there are none, all parameters whose dims include these.
    """
    found: Specs = {}
    for name in [parameter] if parameter else _with_dims(sharded, groups):
        found.setdefault(_spec(sharded, sharded.param[name], noun, shape, groups), []).append(name)
    return found


def specs_by_shape(sharded: Sharded, noun: Noun, shape: Shape, factors: Factors | None = None) -> Specs:
    """Return the possible layouts of a leaf by its `shape`, and by the `factors` of its dims if a trace found them.

    `sharded` and `noun` are those of `specs_of`. {} if no parameter has such a shape, in any order of its dims and with
    or without a layers dim.
    """
    found: Specs = {}
    every = readings(sharded.model, shape, factors or (None,) * len(shape))
    most = max((len(_named(groups)) for groups, _ in every), default=0) if factors else 0
    for groups, name in every:
        if len(_named(groups)) < most:
            continue  # heads * head_dim may have the size of embed
        found.setdefault(_spec(sharded, sharded.param[name], noun, shape, groups), []).append(written(groups))
    return found


def written(groups: Groups) -> str:
    """Return the named dims `groups`, one group per array dim, in the syntax of a rule.

    >>> written((("embed",), (), ("heads", "head_dim")))
    'embed, _, heads * head_dim'
    """
    return ", ".join(" * ".join(group) or UNNAMED for group in groups)


@cached_on(lambda model, shape, factors: (model.cache, (shape, factors)))
def readings(model: Model, shape: Shape, factors: Factors) -> list[tuple[Groups, str]]:
    """Return each way to name the dims of an array of `shape` after a parameter of `model`, with the parameter's name.
    `factors` are the known factors of each array dim (sizes or names), None for an unknown dim."""
    scanned = [i for i, known in enumerate(factors) if known == ()]
    stacks: list[int | None] = [*scanned] or [None, *(i for i, n in enumerate(shape) if n in layer_counts(model))]
    found: list[tuple[Groups, str]] = []
    for param, stack in product(model.params, stacks):
        own = [i for i in range(len(shape)) if i != stack]
        for dims in (d for d in _dims_of_leaves(param) if len(own) <= len(d)):
            for places in product(own, repeat=len(dims)):
                at = [tuple(d for d, place in zip(dims, places, strict=True) if place == i) for i in range(len(shape))]
                groups = tuple((LAYERS,) if i == stack else group for i, group in enumerate(at))
                if all(_fits(model, shape[i], groups[i], factors[i]) for i in own):
                    found.append((groups, param.name))
    return found


def layer_counts(model: Model) -> set[int]:
    """Return the numbers of layers that a stack for `model` may have: of all layers, of one kind of block, or of a run
    of consecutive layers of one kind."""
    return {model.layers, *Counter(model.kinds).values(), *(run.layers for run in model.runs)}


def size_of(model: Model, group: tuple[str, ...]) -> int:
    """Return the size of an array dim that is the product of the dims in `group`, of `model`."""
    return prod(model.sizes[d] for d in group)


def _dims_of_leaves(param: Param) -> list[tuple[str, ...]]:
    """Return the tuples of dims that a leaf for `param` can have: all dims, or for a bias, those of output or input."""
    return [param.dims, *(group for group in param.shape_dims if len(param.shape_dims) > 1)]


def _fits(model: Model, size: int, group: tuple[str, ...], factors: tuple[int | str, ...] | None) -> bool:
    if not group or size_of(model, group) != size:
        return False
    return factors is None or any(_runs(model, factors, order) for order in permutations(group))


def _runs(model: Model, factors: tuple[int | str, ...], dims: tuple[str, ...]) -> bool:
    """True if `factors` (sizes or names) are those of `dims`, in order. Consecutive factors may make one dim: heads may
    be split into groups of key-value heads."""
    rest, size = list(dims), 1
    for factor in factors:
        if isinstance(factor, str):
            if size != 1 or not rest or rest.pop(0) != factor:
                return False
            continue
        size *= factor
        if rest and size == model.sizes[rest[0]]:
            rest.pop(0)
            size = 1
    return not rest and size == 1


def _with_dims(sharded: Sharded, groups: Groups) -> list[str]:
    """Return the parameters with exactly the dims in `groups`; if there are none, those that have further dims too."""
    named = _named(groups)
    exactly = [p.name for p in sharded.model.params if set(p.dims) == named]
    return exactly or [p.name for p in sharded.model.params if named <= set(p.dims)]


def _named(groups: Groups) -> set[str]:
    return {d for group in groups for d in group} - {LAYERS}


def _spec(sharded: Sharded, p: ParamSharding, noun: Noun, shape: Shape, groups: Groups) -> Spec:
    mesh, layout = sharded.plan.mesh, _layouts(sharded)[p.param.name]
    axes = [mesh.in_order(a for d in group for a in layout.get(d, ())) for group in groups]
    axes = [found if n % mesh.size(*found) == 0 else () for found, n in zip(axes, shape, strict=True)]
    used = [parts(sharded.plan, found) for found in axes]
    stored = mesh.in_order(a for a in p.stored[noun] if not any(a in found for found in axes))
    own = [i for i, group in enumerate(groups) if group != (LAYERS,)]
    local = [shape[i] // mesh.size(*axes[i]) for i in own]
    on = p.param.shape_dims[p.on_dim][0] if p.on_dim is not None else ""
    named = next((at for at, i in enumerate(own) if on in groups[i]), None)
    index = largest_cut(local, [bool(axes[i]) for i in own], mesh.size(*stored), named)
    if index is not None:
        used[own[index]] = (*used[own[index]], *parts(sharded.plan, stored))
    return tuple(used)


@cached_on(lambda sharded: (sharded.layout_cache, ()))
def _layouts(sharded: Sharded) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return the axes that shard each dim of the op that uses a parameter, by the parameter's name."""
    return {name: o.layout for ops in sharded.ops.values() for o in ops for name in o.op.params}
