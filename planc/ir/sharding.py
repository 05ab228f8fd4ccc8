"""The result of propagation: the layout of every op, the redistributions between ops, the layout of state.

A layout maps a tensor dim to the mesh axes that shard it, outermost first; replicated dims are left out. The values are
never read from JSON, so they are plain dataclasses, which are created fast at start-up and in a search.
"""

from __future__ import annotations

from dataclasses import field
from functools import cached_property
from typing import Any, Literal

from planc.diag.fast_dataclass import dataclass
from planc.ir.attention_kernel import AttentionKernel
from planc.ir.base import Cause
from planc.ir.cache import Cache
from planc.ir.model import Model, Op, Param, Section
from planc.ir.plan import Noun, Plan
from planc.ir.stack import Stack

Layout = dict[str, tuple[str, ...]]
StepKind = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "slice"]


@dataclass(frozen=True, kw_only=True)
class RedistributionStep:
    """One collective of a redistribution, or a local slice, which sends nothing.

    `dim` is the tensor dim that is gathered, scattered or sliced. An all_to_all gathers `dim` and shards `to_dim`. An
    all_reduce has neither.
    """

    kind: StepKind
    axes: tuple[str, ...]
    dim: str = ""
    to_dim: str = ""


@dataclass(frozen=True, kw_only=True)
class Move:
    """A redistribution of an activation by the collectives in `steps`. Its layout is `before`, as a partial sum over
    the axes `partial`, and becomes `after`. `cause` is the sentence of the plan that requires it."""

    tensor: str
    before: Layout
    partial: tuple[str, ...] = ()
    after: Layout
    steps: tuple[RedistributionStep, ...]
    cause: Cause | None = None


@dataclass(frozen=True, kw_only=True)
class OpSharding:
    """One op of a sharded plan. `redistributions[i]` converts input i to the layout of the op (None: no change).

    `layout` has the axes that shard each dim over which the op iterates. The output is a partial sum over the axes
    `partial`; `settle` redistributes it to its layout between ops.
    """

    op: Op
    layout: Layout
    redistributions: tuple[Move | None, ...]
    partial: tuple[str, ...] = ()
    settle: Move | None = None
    ring: tuple[str, ...] = ()
    """Attention: the axes around which keys and values are passed in a ring instead of gathered."""

    def needs(self, tensor: str, dims: tuple[str, ...]) -> Layout:
        """Return the layout in which this op reads its input `tensor`, which has the dims `dims`."""
        whole = () if self.ring else self.op.whole_of.get(tensor, ())
        return {d: self.layout[d] for d in dims if self.layout.get(d) and d not in whole}


@dataclass(frozen=True, kw_only=True)
class ParamSharding:
    """One parameter of a sharded plan.

    `compute` gives, per array dim, the axes that shard the parameter while ops use it (TP). The gradient is a partial
    sum over `grad_partial`: the axes of the batch and, for a norm, also those of the sequence. `stored` are the further
    axes that shard the parameter, its gradient or its optimizer state between uses.
    """

    param: Param
    compute: tuple[tuple[str, ...], ...]
    grad_partial: tuple[str, ...]
    stored: dict[Noun, tuple[str, ...]]
    on_dim: int | None = None
    """Index of the array dim that `store ... on DIM` names; None leaves the choice to the target."""
    cause: Cause | None = None

    def axes(self) -> tuple[str, ...]:
        """Return the axes that shard the parameter while ops use it, over all its dims."""
        return tuple(a for group in self.compute for a in group)


@dataclass(frozen=True, kw_only=True)
class Sharded:
    """A plan with the layouts of its ops and parameters. `ops` has one block for all layers of a kind."""

    plan: Plan
    ops: dict[Section, tuple[OpSharding, ...]]
    params: tuple[ParamSharding, ...]
    stack: Stack
    """The software that runs the plan."""
    attention: AttentionKernel | None = None
    """The attention kernel of a target's program; None: the one that the plan names, or a fused one."""
    layout_cache: Cache = field(default_factory=Cache, compare=False, repr=False)
    """Cached results that depend on layouts only, not on axis sizes or batch."""

    @property
    def model(self) -> Model:
        return self.plan.model

    @cached_property
    def param(self) -> dict[str, ParamSharding]:
        return {p.param.name: p for p in self.params}

    @cached_property
    def cache(self) -> Cache:
        """Cached results that depend on everything in the plan, not only on its layouts."""
        return Cache()

    def resized(self, plan: Plan) -> Sharded:
        """Return `plan` with these layouts. It may differ from this plan only in axis sizes and batch."""
        return Sharded(
            plan=plan,
            ops=self.ops,
            params=self.params,
            stack=self.stack,
            attention=self.attention,
            layout_cache=self.layout_cache,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _sharded, (self.plan, self.ops, self.params, self.stack)

    @cached_property
    def tied(self) -> tuple[ParamSharding, ...]:
        """The parameters that both the first and the last section of the model use (tied embeddings)."""
        return tuple(p for p in self.params if {"first", "last"} <= set(p.param.sections))

    @cached_property
    def op(self) -> dict[str, OpSharding]:
        return {o.op.name: o for ops in self.ops.values() for o in ops}

    @cached_property
    def attentions(self) -> tuple[OpSharding, ...]:
        """The attention op of each kind of block."""
        return tuple(o for kind in self.model.blocks for o in self.ops[kind] if o.op.kind == "attention")

    def declared(self, tensor: str) -> Layout:
        """Return the layout that the plan's sentences give the activation `tensor` between ops. Raises KeyError if the
        model has no such tensor."""
        t = self.model.tensor[tensor]
        layout = {d: self.plan.axes_of(d, t.region) for d in t.dims}
        return {d: axes for d, axes in layout.items() if axes}


def _sharded(
    plan: Plan, ops: dict[Section, tuple[OpSharding, ...]], params: tuple[ParamSharding, ...], stack: Stack
) -> Sharded:
    return Sharded(plan=plan, ops=ops, params=params, stack=stack)
