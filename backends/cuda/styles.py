"""Tensor parallelism as torch's parallel styles, derived from the op graph under a plan.

No model's or strategy's name is known here. An op whose weight is divided on its output is column
parallel, on its input row parallel; a norm over a divided sequence is sequence parallel; what an
undivided module must gather or slice becomes a preparation of its inputs or outputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planc.ir.base import Cause
from planc.ir.model import Section
from planc.ir.sharding import Layout, Move, OpSharding, Sharded

from .roles import Roles


@dataclass(frozen=True)
class Style:
    """`path` (relative to the model or block) gets torch's `name(**arguments)`.

    `collective` says what moves there, in the plan's words; `cause` is the sentence behind it.
    """

    path: str
    name: str
    arguments: tuple[tuple[str, str], ...] = ()
    collective: str = ""
    cause: Cause | None = None


@dataclass(frozen=True)
class Styler:
    """Derives the styles of one plan. `roles.tensor` are the axes of tensor parallelism."""

    sharded: Sharded
    roles: Roles

    def top(self) -> tuple[Style, ...]:
        """The styles of the modules outside the blocks."""
        return (*self._section("first"), *self._section("last"))

    def block(self) -> tuple[Style, ...]:
        """The styles of one block, with paths relative to it."""
        return tuple(self._section("block"))

    @property
    def loss_parallel(self) -> bool:
        """Whether the loss is taken over a divided vocab."""
        return any(o.op.kind == "loss" and self._on(o.layout, "vocab") for o in self.sharded.ops["last"])

    def separate_gathers(self, tensor: str) -> int:
        """How many modules gather this tensor for themselves, or for the children they hold."""
        return max(len(self._gatherers(ops, tensor)) for ops in self.sharded.ops.values())

    def _gatherers(self, ops: tuple[OpSharding, ...], tensor: str) -> set[str]:
        styled = [o for o in ops if o.op.params]
        readers = [o for o in styled if o.op.inputs[0] == tensor and o.moves[0] is not None]
        return {self._shared_parent(o, styled) or o.op.module for o in readers}

    def _section(self, section: Section) -> Iterator[Style]:
        ops = [o for o in self.sharded.ops[section] if o.op.params]
        prepared: set[str] = set()
        for o in ops:
            parent = self._shared_parent(o, ops)
            if parent and parent not in prepared:
                prepared.add(parent)
                yield self._parent_style(o, parent)
            style = self._style(o, prepared_by_parent=bool(parent))
            if style is not None:
                yield style

    def _style(self, o: OpSharding, *, prepared_by_parent: bool) -> Style | None:
        path = relative(o.op.module)
        if o.op.kind == "norm":
            cause = self._cause("sequence", o)
            return Style(path, "SequenceParallel", cause=cause) if self._on(o.layout, "sequence") else None
        side = self._divided_side(o)
        if side == 0 and o.op.kind == "matmul":
            return self._colwise(o, path, prepared_by_parent)
        if side is not None:
            return self._rowwise(o, path)
        return self._undivided(o, path, prepared_by_parent)

    def _colwise(self, o: OpSharding, path: str, prepared_by_parent: bool) -> Style:
        arguments, collectives = [], []
        if not prepared_by_parent:
            arguments.append(("input_layouts", self._placement(self._declared(o, 0), o.op.inputs[0])))
            collectives.append(self._said(o.moves[0], self._backward_sum(o)))
        if self._feeds_loss(o):
            arguments += [("output_layouts", "Shard(-1)"), ("use_local_output", "False")]
        elif o.settle is not None:
            arguments.append(("output_layouts", self._placement(o.settle.after, o.op.output)))
            collectives.append(self._said(o.settle))
        return self._made(o, path, "ColwiseParallel", arguments, collectives)

    def _rowwise(self, o: OpSharding, path: str) -> Style:
        arguments = [("output_layouts", self._placement(self.sharded.declared(o.op.output), o.op.output))]
        if o.op.kind == "embedding":
            arguments.insert(0, ("input_layouts", "Replicate()"))
        return self._made(o, path, "RowwiseParallel", arguments, [self._said(o.settle)])

    def _undivided(self, o: OpSharding, path: str, prepared_by_parent: bool) -> Style | None:
        """A module that every rank runs whole: only its ends are prepared."""
        before, after = None if prepared_by_parent else o.moves[0], o.settle
        arguments = []
        if before is not None:
            arguments += [
                ("input_layouts", f"({self._placement(before.before, before.tensor)},)"),
                ("desired_input_layouts", f"({self._placement(before.after, before.tensor)},)"),
                ("use_local_input" if after else "use_local_output", "True"),
            ]
        if after is not None:
            arguments += [
                ("output_layouts", self._placement(after.before, after.tensor)),
                ("desired_output_layouts", self._placement(after.after, after.tensor)),
            ]
        if not arguments:
            return None
        name = "PrepareModule" + ("Input" if before else "") + ("Output" if after else "")
        return self._made(o, path, name, arguments, [self._said(before), self._said(after)])

    def _parent_style(self, o: OpSharding, parent: str) -> Style:
        """One gather for all children that read the parent's input; undivided ones take a plain tensor."""
        arguments = [
            ("input_layouts", f"({self._placement(self._declared(o, 0), o.op.inputs[0])},)"),
            ("desired_input_layouts", "(Replicate(),)"),
        ]
        if self._divided_side(o) is None:
            arguments.append(("use_local_output", "True"))
        collectives = [self._said(o.moves[0], self._backward_sum(o))]
        return self._made(o, relative(parent), "PrepareModuleInput", arguments, collectives)

    def _made(
        self, o: OpSharding, path: str, name: str, arguments: list[tuple[str, str]], collectives: list[str]
    ) -> Style:
        said = "; ".join(c for c in collectives if c)
        moves = [m for m in (*o.moves, o.settle) if m is not None and m.cause is not None]
        cause = moves[0].cause if moves and said else self._weight_cause(o)
        return Style(path, name, tuple(arguments), said, cause)

    def _shared_parent(self, o: OpSharding, ops: list[OpSharding]) -> str:
        """The module around `o` whose input `o` reads, if all its readers want it in one layout."""
        parent = o.op.module.rpartition(".")[0]
        source = o.op.inputs[0]
        if o.op.kind != "matmul" or parent in ("", "layers.*"):
            return ""
        if any(p.op.output == source for p in self._ops_within(parent)):
            return ""
        sides = {self._divided_side(p) for p in ops if self._reads(p, parent, source)}
        return parent if sides == {0} or (sides == {None} and o.moves[0] is not None) else ""

    @staticmethod
    def _reads(o: OpSharding, parent: str, tensor: str) -> bool:
        return o.op.module.startswith(f"{parent}.") and tensor in o.op.inputs

    def _ops_within(self, parent: str) -> Iterator[OpSharding]:
        for ops in self.sharded.ops.values():
            yield from (o for o in ops if o.op.module == parent or o.op.module.startswith(f"{parent}."))

    def _divided_side(self, o: OpSharding) -> int | None:
        """Which storage dimension of the op's weight the tensor axes divide (0: rows, the output)."""
        weight = self.sharded.param[o.op.params[0]]
        return next((i for i, axes in enumerate(weight.compute) if self._tensor(axes)), None)

    def _feeds_loss(self, o: OpSharding) -> bool:
        return self.loss_parallel and any(
            p.op.kind == "loss" and o.op.output in p.op.inputs for p in self.sharded.ops["last"]
        )

    def _backward_sum(self, o: OpSharding) -> bool:
        """Without a forward move, the gradients of a whole input are summed over the axes."""
        return o.moves[0] is None

    def _said(self, move: Move | None, all_reduce_back: bool = False) -> str:
        """The collectives of a move in words: forward, and what its backward does."""
        names = " + ".join(self.roles.tensor)
        if move is None:
            return f"all-reduce of the gradient over {names} in the backward" if all_reduce_back else ""
        steps = [s for s in move.steps if self._tensor(s.axes)]
        words = [f"{s.kind.replace('_', '-')}{f' of {s.dim}' if s.dim else ''} over {names}" for s in steps]
        return ", ".join(words)

    def _declared(self, o: OpSharding, index: int) -> Layout:
        return self.sharded.declared(o.op.inputs[index])

    def _placement(self, layout: Layout, tensor: str) -> str:
        """A DTensor placement over the tensor mesh: which of the tensor's dims it divides."""
        dims = self.sharded.model.tensor[tensor].dims
        at = next((i for i, d in enumerate(dims) if self._on(layout, d)), None)
        return "Replicate()" if at is None else f"Shard({at})"

    def _on(self, layout: Layout, dim: str) -> bool:
        return bool(self._tensor(layout.get(dim, ())))

    def _tensor(self, axes: tuple[str, ...]) -> bool:
        return bool(set(axes) & set(self.roles.tensor))

    def _cause(self, dim: str, o: OpSharding) -> Cause | None:
        return self.sharded.plan.cause_of_shard(dim, self.roles.tensor[0], o.op.region)

    def _weight_cause(self, o: OpSharding) -> Cause | None:
        weight = self.sharded.param[o.op.params[0]]
        divided = [d for group in weight.param.shape_dims for d in group if self._on(o.layout, d)]
        return self._cause(divided[0], o) if divided else None


def relative(module: str) -> str:
    """A module's path inside its block, or from the model for those outside the blocks."""
    return module.removeprefix("layers.*.")
