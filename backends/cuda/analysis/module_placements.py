"""Derives the placements of an op's weight, inputs and output where the op's module begins and ends.

A redistribution is issued only there, so an op that needs one must have a module of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from planc.backends.cuda.analysis.placements import Groups, Placement, folded, placement
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.ir.model import Section
from planc.ir.sharding import Layout, Move, OpSharding, Sharded
from planc.sharding.activation_collectives import shared_over
from planc.sharding.redistribute import restrict, steps_between


@dataclass(frozen=True, eq=False)
class Boundary:
    """An op of a section, and the placements of its weight, inputs and output where its module begins and ends, over
    the tensor-parallel axes."""

    o: OpSharding
    section: Section
    sharded: Sharded
    roles: AxisRoles

    @property
    def path(self) -> str:
        """Path of the op's module, relative to its block, or to the model outside the blocks."""
        return relative(self.o.op.module)

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """The tensor axes that shard the op, or over which its inputs and output are redistributed."""
        divided = (a for d, axes in self.o.layout.items() if d != "batch" for a in axes)
        moved = (a for m in (*self.redistributions, self.settle) if m for s in m.steps for a in s.axes)
        return self.roles.tensor_part((*divided, *moved))

    @property
    def parent(self) -> str:
        """Path of the enclosing module; "" at the top of the model or of a block."""
        parent = self.o.op.module.rpartition(".")[0]
        return "" if parent == "layers.*" else parent

    @property
    def alone(self) -> bool:
        """True if the op's module has no other ops."""
        return self.o.op.module != "layers.*" and not any(self._others())

    @property
    def at_edge(self) -> bool:
        """True if the inputs of the op can be redistributed where its module begins: no other op is in the module, or
        this op gathers the outputs of all others (`gatherer`)."""
        if self.o.op.module == "layers.*":
            return False
        found = (Boundary(o, self.section, self.sharded, self.roles).gatherer for o in self._others())
        return all(other is not None and other.o is self.o for other in found)

    def _others(self) -> Iterator[OpSharding]:
        module = self.o.op.module
        for o in self.sharded.ops[self.section]:
            if o is not self.o and (o.op.module == module or o.op.module.startswith(f"{module}.")):
                yield o

    @cached_property
    def shared_input(self) -> int | None:
        """Index of a replicated input that all heads read, if tensor parallelism shards the heads: the input's gradient
        is summed over the ranks. None if there is no such input, and for attention."""
        if self.o.op.kind == "attention":
            return None
        whole = self.o.op.whole_of
        return next((i for i, t in enumerate(self.o.op.inputs) if any(self.divides(d) for d in whole.get(t, ()))), None)

    @property
    def shares_keys(self) -> bool:
        """True for attention with sharded query heads and replicated keys."""
        if self.o.op.kind != "attention":
            return False
        shared = shared_over(self.o, self._dims(self.o.op.inputs[1]))
        return bool(set(shared) & set(self.roles.tensor))

    @property
    def scored(self) -> str:
        """Path of the module with attention's own parameters (sinks), if tensor parallelism shards them; else ""."""
        divided = self.o.op.kind == "attention" and self.o.op.params and self.weight.dim is not None
        return self.o.op.params[0].rpartition(".")[0] if divided else ""

    @cached_property
    def gatherer(self) -> Boundary | None:
        """The op in the same module that all-gathers this op's output over the tensor-parallel axes; None if there is
        none. If there is one, every rank computes this op in full, from its full input."""
        for o in self.sharded.ops[self.section]:
            if o.op.module == self.o.op.module and self.o.op.output in o.op.inputs:
                other, index = Boundary(o, self.section, self.sharded, self.roles), o.op.inputs.index(self.o.op.output)
                if other.forward_kinds(index) == ("all_gather",) or index == other.shared_input:
                    return other
        return None

    @property
    def given_weight(self) -> bool:
        """True if the op uses the weight of another module, as a tied head does."""
        params = self.o.op.params
        return bool(params) and params[0].rpartition(".")[0] != self.o.op.module

    @property
    def linear(self) -> bool:
        """True if the op's weight is a matrix [out, in], as in nn.Linear."""
        op, tensor = self.o.op, self.sharded.model.tensor
        if op.kind != "matmul" or len(self._storage_dims) != 2:
            return False
        made, taken = self._storage_dims
        return set(made) <= set(tensor[op.output].dims) and set(taken) <= set(tensor[op.inputs[0]].dims)

    @cached_property
    def weight(self) -> Placement:
        """Placement of the op's first parameter; replicated if the op has none."""
        return self._placement(self.o.layout, self._storage_dims)

    @property
    def rows(self) -> tuple[str, ...]:
        """Sharded dims of the op that its weight lacks: each rank has the full weight and some of the rows."""
        inside = {d for group in self._storage_dims for d in group}
        return tuple(d for d in self.o.layout if d not in inside and self.divides(d)) if self.o.op.params else ()

    @property
    def weights(self) -> dict[str, Placement]:
        """Placements of the op's parameters, by their name in the module; a bias is sharded like the output."""
        params = self.sharded.model.param
        return {
            name.rpartition(".")[2]: self._placement(self.o.layout, params[name].shape_dims)
            for name in self.o.op.params
        }

    def needed(self, index: int = 0) -> Placement:
        """Returns the placement in which the op needs the input at `index`."""
        name = self.o.op.inputs[index]
        return self._input(self.o.needs(name, self._dims(name)), name)

    def resting(self, index: int = 0) -> Placement:
        """Returns the declared placement of the input at `index`, in which it arrives at the module."""
        name = self.o.op.inputs[index]
        return self._input(self.sharded.declared(name), name)

    @property
    def made(self) -> Placement:
        """Placement in which the op computes its output; a partial sum over the tensor axes counts as replicated."""
        return self._output(restrict(self.o.layout, self._dims(self.o.op.output)))

    @property
    def left(self) -> Placement:
        """The declared placement of the output, in which it leaves the module."""
        return self._output(self.sharded.declared(self.o.op.output))

    def move(self, index: int = 0) -> Move | None:
        """Returns the redistribution of the input at `index` over the tensor axes; None if there is none."""
        return self._over_tensor_axes(self.o.redistributions[index])

    def forward_kinds(self, index: int = 0) -> tuple[str, ...]:
        """Returns the collectives, in order, that redistribute the input at `index` to the layout that the op needs."""
        move = self.move(index)
        return tuple(s.kind for s in move.steps) if move else ()

    @property
    def redistributions(self) -> tuple[Move | None, ...]:
        return tuple(self._over_tensor_axes(m) for m in self.o.redistributions)

    @property
    def settle(self) -> Move | None:
        return self._over_tensor_axes(self.o.settle)

    def summed_back(self, index: int = 0) -> bool:
        """True if the gradient of the input at `index` is a partial sum over the tensor axes."""
        dims = self._dims(self.o.op.inputs[index])
        mixed = self.o.op.kind == "matmul" and any(self.divides(d) for d in self.o.layout if d not in dims)
        return mixed or index == self.shared_input

    def backward_kinds(self, index: int = 0) -> tuple[str, ...]:
        """Returns the collectives, in order, that bring the gradient of the input at `index` to the input's layout."""
        name = self.o.op.inputs[index]
        partial = self.roles.tensor if self.summed_back(index) else ()
        steps = steps_between(self.o.needs(name, self._dims(name)), partial, self.sharded.declared(name))
        return tuple(s.kind for s in steps if set(s.axes) & set(self.roles.tensor))

    def divides(self, dim: str) -> bool:
        """True if tensor parallelism shards `dim` of the op's index space."""
        return bool(set(self.o.layout.get(dim, ())) & set(self.roles.tensor))

    @property
    def divided(self) -> tuple[str, ...]:
        """The dims of the op that the tensor axes shard."""
        return tuple(d for d in self.o.layout if self.divides(d))

    def _over_tensor_axes(self, move: Move | None) -> Move | None:
        ours = move is not None and any(set(s.axes) & set(self.roles.tensor) for s in move.steps)
        return move if ours else None

    @cached_property
    def _storage_dims(self) -> Groups:
        params = self.o.op.params
        return self.sharded.model.param[params[0]].shape_dims if params else ()

    def _dims(self, tensor: str) -> tuple[str, ...]:
        return self.sharded.model.tensor[tensor].dims

    def _input(self, layout: Layout, tensor: str) -> Placement:
        return self._placement(layout, folded(self._dims(tensor), self._storage_dims if self.linear else ()))

    def _output(self, layout: Layout) -> Placement:
        dims = self._dims(self.o.op.output)
        return self._placement(layout, folded(dims, self._storage_dims if self.linear else ()))

    def _placement(self, layout: Layout, groups: Groups) -> Placement:
        return placement(layout, groups, self.sharded.model.sizes, self.roles.tensor)


def relative(module: str) -> str:
    """Returns the path of `module` relative to its block, or to the model outside the blocks."""
    return module.removeprefix("layers.*.")
