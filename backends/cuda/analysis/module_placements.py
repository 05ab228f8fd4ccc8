"""An op at the edge of the module that does it: the placements of its weight, its inputs and its output.

A redistribution is realised where a module begins or ends, so an op that needs one must have a module
of its own.
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
    """One op of a section. Placements are over the tensor axes alone."""

    o: OpSharding
    section: Section
    sharded: Sharded
    roles: AxisRoles

    @property
    def path(self) -> str:
        """The module's path inside its block, or from the model for those outside the blocks."""
        return relative(self.o.op.module)

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """The tensor axes that divide the op, or that its inputs and output are moved over."""
        divided = (a for d, axes in self.o.layout.items() if d != "batch" for a in axes)
        moved = (a for m in (*self.redistributions, self.settle) if m for s in m.steps for a in s.axes)
        return self.roles.tensor_part((*divided, *moved))

    @property
    def parent(self) -> str:
        """Path of the module around it; empty at the top of the model or of a block."""
        parent = self.o.op.module.rpartition(".")[0]
        return "" if parent == "layers.*" else parent

    @property
    def alone(self) -> bool:
        """True if the module does this op and nothing else."""
        return self.o.op.module != "layers.*" and not any(self._others())

    @property
    def at_edge(self) -> bool:
        """True if the inputs of the op are those of its module, or come from ops whose `gatherer` it is."""
        if self.o.op.module == "layers.*":
            return False
        found = (Boundary(o, self.section, self.sharded, self.roles).gatherer for o in self._others())
        return all(other is not None and other.o is self.o for other in found)

    def _others(self) -> Iterator[OpSharding]:
        """The other ops that the module does."""
        module = self.o.op.module
        for o in self.sharded.ops[self.section]:
            if o is not self.o and (o.op.module == module or o.op.module.startswith(f"{module}.")):
                yield o

    @cached_property
    def shared_input(self) -> int | None:
        """The index of an input that all heads share, where the tensor axes divide the heads: each rank takes the whole
        of it, and its gradient is a sum over the ranks. None without one, and for attention, which divides its rows.
        """
        if self.o.op.kind == "attention":
            return None
        whole = self.o.op.whole_of
        return next((i for i, t in enumerate(self.o.op.inputs) if any(self.divides(d) for d in whole.get(t, ()))), None)

    @property
    def shares_keys(self) -> bool:
        """True for attention whose keys are whole on every rank of the tensor axes, which divide its query heads."""
        if self.o.op.kind != "attention":
            return False
        shared = shared_over(self.o, self._dims(self.o.op.inputs[1]))
        return bool(set(shared) & set(self.roles.tensor))

    @property
    def scored(self) -> str:
        """The module of the scores that attention's heads have of their own, where the tensor axes divide the heads; an
        empty string for none."""
        divided = self.o.op.kind == "attention" and self.o.op.params and self.weight.dim is not None
        return self.o.op.params[0].rpartition(".")[0] if divided else ""

    @cached_property
    def gatherer(self) -> Boundary | None:
        """The op in the same module that takes this one's output whole over the tensor axes. The module takes the whole
        input of this op, and does all of its rows."""
        for o in self.sharded.ops[self.section]:
            if o.op.module == self.o.op.module and self.o.op.output in o.op.inputs:
                other, index = Boundary(o, self.section, self.sharded, self.roles), o.op.inputs.index(self.o.op.output)
                if other.forward_kinds(index) == ("all_gather",) or index == other.shared_input:
                    return other
        return None

    @property
    def given_weight(self) -> bool:
        """True if another module holds its weight: the head of a model that uses the embedding's."""
        params = self.o.op.params
        return bool(params) and params[0].rpartition(".")[0] != self.o.op.module

    @property
    def linear(self) -> bool:
        """A matrix stored [out, in], as torch's linear layer has it."""
        op, tensor = self.o.op, self.sharded.model.tensor
        if op.kind != "matmul" or len(self._storage_dims) != 2:
            return False
        made, taken = self._storage_dims
        return set(made) <= set(tensor[op.output].dims) and set(taken) <= set(tensor[op.inputs[0]].dims)

    @cached_property
    def weight(self) -> Placement:
        """Placement of the op's first parameter; replicated without one."""
        return self._placement(self.o.layout, self._storage_dims)

    @property
    def rows(self) -> tuple[str, ...]:
        """The divided dims that its weight lacks: each rank does its part of the work with the whole weight."""
        inside = {d for group in self._storage_dims for d in group}
        return tuple(d for d in self.o.layout if d not in inside and self.divides(d)) if self.o.op.params else ()

    @property
    def weights(self) -> dict[str, Placement]:
        """By their names in the module; a bias is divided as the output is."""
        params = self.sharded.model.param
        return {
            name.rpartition(".")[2]: self._placement(self.o.layout, params[name].shape_dims)
            for name in self.o.op.params
        }

    def needed(self, index: int = 0) -> Placement:
        """Placement in which the op needs the input at `index`."""
        name = self.o.op.inputs[index]
        return self._input(self.o.needs(name, self._dims(name)), name)

    def resting(self, index: int = 0) -> Placement:
        """Placement in which the input at `index` arrives."""
        name = self.o.op.inputs[index]
        return self._input(self.sharded.declared(name), name)

    @property
    def made(self) -> Placement:
        """Placement of the op's output; a partial sum over the tensor axes counts as replicated."""
        return self._output(restrict(self.o.layout, self._dims(self.o.op.output)))

    @property
    def left(self) -> Placement:
        """Placement in which the output leaves the module."""
        return self._output(self.sharded.declared(self.o.op.output))

    def move(self, index: int = 0) -> Move | None:
        """The redistribution of the input at `index` over the tensor axes; None if there is none."""
        return self._over_tensor_axes(self.o.redistributions[index])

    def forward_kinds(self, index: int = 0) -> tuple[str, ...]:
        """The collectives, in order, that bring the input at `index` into the layout that the op needs."""
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
        """The collectives, in order, that bring the gradient of the input at `index` into that input's own layout."""
        name = self.o.op.inputs[index]
        partial = self.roles.tensor if self.summed_back(index) else ()
        steps = steps_between(self.o.needs(name, self._dims(name)), partial, self.sharded.declared(name))
        return tuple(s.kind for s in steps if set(s.axes) & set(self.roles.tensor))

    def divides(self, dim: str) -> bool:
        """True if tensor parallelism divides `dim` of the op's index space."""
        return bool(set(self.o.layout.get(dim, ())) & set(self.roles.tensor))

    @property
    def divided(self) -> tuple[str, ...]:
        """The dims of the op that the tensor axes divide."""
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
    """The path of `module` inside its block, or from the model for those outside the blocks."""
    return module.removeprefix("layers.*.")
