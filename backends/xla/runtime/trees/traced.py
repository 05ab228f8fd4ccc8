"""Finds the dims of leaves from the user's function: reads its jaxpr and unifies axes that must be equal.

A matmul unifies the axes that it contracts, an addition those of its operands, a scan those of its body. An axis that
is split or merged is a product: this tells a weight [embed, heads * head_dim] from its transpose if both have the same
shape. Nothing is computed: arguments are shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.extend import core

from planc.backends.xla.runtime.trees.layout import Factors, Shape
from planc.diag import Diagnostic, PlanError
from planc.diag.quoting import printable

if TYPE_CHECKING:
    from planc.ir.model import Model
    from planc.ir.plan import Plan

Axes = tuple[int, ...]
"""The axes of one value, as ids for the union-find."""
CALLS = {"pjit": "jaxpr", "jit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "remat2": "jaxpr"}
CALLS |= {"checkpoint": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}
CALLS |= {"custom_vjp_call_jaxpr": "fun_jaxpr", "remat": "jaxpr", "xla_call": "call_jaxpr"}
"""Primitives that call a function, and the parameter that holds it."""
MIXING = ("sort", "dot_general", "transpose", "rev", "conv_general_dilated", "fft", "cholesky", "triangular_solve")
"""Primitives whose output may have the shape of an input but different axes."""


def factors_of_leaves(model: Callable[[Any, jax.Array], Any], tree: Any, plan: Plan) -> list[Factors | None]:
    """Return the factors (sizes, or names of dims) of each dim of each leaf of `tree`, as far as a trace of `model`
    determines them. None for every leaf if some leaf is no array.

    Args:
        model: a function of the tree and tokens [B, S], int32.
        tree: arrays or shapes.
        plan: the plan, whose batch gives the shape of the tokens: one microbatch.

    Raises:
        PlanError: the function cannot be traced with these inputs (E1206).
    """
    leaves, structure = jax.tree_util.tree_flatten(tree)
    struct: Any = jax.ShapeDtypeStruct
    shapes = [struct(leaf.shape, leaf.dtype) for leaf in leaves if hasattr(leaf, "shape")]
    if len(shapes) < len(leaves):
        return [None] * len(leaves)  # these leaves are reported
    rows = plan.batch.microbatch_sequences * plan.data_parallel
    tokens = struct((rows, plan.batch.sequence_tokens), jnp.int32)
    try:
        closed = jax.make_jaxpr(model)(jax.tree_util.tree_unflatten(structure, shapes), tokens)
    except Exception as error:  # the user's code may raise anything
        first = printable(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
        message = f"the function `model` fails on the tree and tokens {list(tokens.shape)}: "
        message += first
        raise PlanError([Diagnostic("E1206", message, plan.mesh.cause.span)]) from error
    joined = _Joined(_table_dims(plan.model), plan.model.sizes.get("head_dim", 0))
    inputs = [joined.fresh(v.aval.shape) for v in closed.jaxpr.invars]
    joined.tokens = inputs[-1]
    joined.run(closed.jaxpr, inputs)
    return [joined.factors(axes) for axes in inputs[: len(leaves)]]


def _table_dims(model: Model) -> tuple[str, ...]:
    looked_up = next(op for op in model.ops["first"] if op.kind == "embedding")
    return model.param[looked_up.params[0]].dims


class _Joined:
    """A union-find over the axes of all values in a traced function. Joined axes are the same dim.

    `table` are the named dims of the embedding table: in a lookup of tokens, the axes of the table get these names.
    `head_dim` is the size of an attention head; the matmuls of attention show which axis it is.
    """

    def __init__(self, table: tuple[str, ...] = (), head_dim: int = 0) -> None:
        self.tokens: Axes = ()
        self._table, self._head_dim = table, head_dim
        self._name: dict[int, str] = {}
        self._parent: list[int] = []
        self._size: list[int] = []
        self._made_of: dict[int, Axes] = {}
        self._part_of: dict[int, int] = {}
        self._scanned: set[int] = set()

    def fresh(self, shape: Sequence[int]) -> Axes:
        """Return new axes, one for each size."""
        first = len(self._parent)
        self._parent += range(first, first + len(shape))
        self._size += shape
        return tuple(range(first, first + len(shape)))

    def factors(self, axes: Axes) -> Factors:
        """Return the factors of each axis in `axes`, sizes or names of dims; () for an axis that a scan runs over."""
        return tuple(() if self._root(a) in self._scanned else self._factors(a, set()) for a in axes)

    def _factors(self, axis: int, seen: set[int]) -> tuple[int | str, ...]:
        root = self._root(axis)
        if root in self._name:
            return (self._name[root],)
        inner = self._made_of.get(root)
        if inner is None or root in seen:
            return (self._size[root],)
        return tuple(n for a in inner for n in self._factors(a, seen | {root}))

    def _root(self, axis: int) -> int:
        while self._parent[axis] != axis:
            self._parent[axis] = self._parent[self._parent[axis]]
            axis = self._parent[axis]
        return axis

    def _join(self, one: int, other: int) -> None:
        """Join the axes `one` and `other` into one dim, unless they differ in size (a broadcast) or have size 1."""
        first, second = self._root(one), self._root(other)
        if first == second or self._size[first] != self._size[second] or self._size[first] == 1:
            return
        self._parent[second] = first
        if second in self._scanned:
            self._scanned.add(first)
        if second in self._name:
            self._name.setdefault(first, self._name[second])
        if second in self._part_of:
            whole = self._part_of.setdefault(first, self._part_of[second])
            self._join(whole, self._part_of[second])
        inner = self._made_of.pop(second, None)
        if inner is None:
            return
        known = self._made_of.setdefault(first, inner)
        if [self._size[a] for a in known] == [self._size[a] for a in inner]:
            for a, b in zip(known, inner, strict=True):
                self._join(a, b)

    def _join_all(self, one: Axes, other: Axes) -> None:
        for a, b in zip(one, other, strict=True):
            self._join(a, b)

    def run(self, jaxpr: Any, inputs: Sequence[Axes], constants: Sequence[Axes] | None = None) -> list[Axes]:
        """Join the axes of all values of `jaxpr`, whose arguments have axes `inputs`; return the outputs' axes."""
        of: dict[Any, Axes] = dict(zip(jaxpr.invars, inputs, strict=True))
        for var in jaxpr.constvars:
            of[var] = self.fresh(var.aval.shape)

        def axes(atom: Any) -> Axes:
            if isinstance(atom, core.Literal) or atom not in of:
                return self.fresh(getattr(atom.aval, "shape", ()))
            return of[atom]

        for eqn in jaxpr.eqns:
            ins = [axes(v) for v in eqn.invars]
            outs = self._called(eqn, ins)
            if outs is None:
                outs = [self.fresh(getattr(v.aval, "shape", ())) for v in eqn.outvars]
                self._operation(eqn, ins, outs)
            of |= dict(zip(eqn.outvars, outs, strict=True))
        return [axes(v) for v in jaxpr.outvars]

    def _called(self, eqn: Any, ins: list[Axes]) -> list[Axes] | None:
        """Return the axes of the outputs of `eqn` if it calls functions, else None; inputs have the axes `ins`."""
        name = eqn.primitive.name
        if name in CALLS and CALLS[name] in eqn.params:
            return self.run(_open(eqn.params[CALLS[name]]), ins)
        if name == "scan":
            return self._scan(eqn, ins)
        if name == "while":
            before = eqn.params["cond_nconsts"]
            body, consts = _open(eqn.params["body_jaxpr"]), eqn.params["body_nconsts"]
            carry = ins[before + consts :]
            for a, b in zip(carry, self.run(body, ins[before:]), strict=True):
                self._join_all(a, b)
            return list(carry)
        if name == "cond":
            branches = [self.run(_open(branch), ins[1:]) for branch in eqn.params["branches"]]
            for other in branches[1:]:
                for a, b in zip(branches[0], other, strict=True):
                    self._join_all(a, b)
            return branches[0]
        return None

    def _scan(self, eqn: Any, ins: list[Axes]) -> list[Axes]:
        """Return the axes of the outputs of a scan, given the axes `ins` of its inputs. The last inputs are sliced
        along their first axis, which counts the iterations."""
        consts, carried = eqn.params["num_consts"], eqn.params["num_carry"]
        carry, over = ins[consts : consts + carried], ins[consts + carried :]
        self._scanned |= {self._root(axes[0]) for axes in over}
        outs = self.run(_open(eqn.params["jaxpr"]), [*ins[:consts], *carry, *(axes[1:] for axes in over)])
        for a, b in zip(carry, outs[:carried], strict=True):
            self._join_all(a, b)
        steps = self.fresh([eqn.params["length"]])
        self._scanned |= set(steps)
        return [*carry, *((*steps, *axes) for axes in outs[carried:])]

    def _operation(self, eqn: Any, ins: list[Axes], outs: list[Axes]) -> None:
        """Join the axes of the inputs `ins` and outputs `outs` of a primitive that calls no function."""
        name, params = eqn.primitive.name, eqn.params
        for a, b in _pairs(name, params, [self._shape(axes) for axes in ins], self._shape(outs[0]) if outs else ()):
            every = [*ins, outs[0]]
            self._join(every[a[0]][a[1]], every[b[0]][b[1]])
        if name == "reshape":
            self._reshape(ins[0], outs[0])
        if name in ("slice", "split"):
            for out in outs:
                self._cut(ins[0], out)
        if name == "concatenate":
            self._put_together([axes[params["dimension"]] for axes in ins], outs[0][params["dimension"]])
        if name == "gather" and len(ins[0]) == len(self._table) and self._of_tokens(ins[1]):
            for axis, dim in zip(ins[0], self._table, strict=True):
                self._name.setdefault(self._root(axis), dim)

        if name == "dot_general":
            self._attention(params["dimension_numbers"], ins)

    def _attention(self, numbers: Any, ins: list[Axes]) -> None:
        """Name the `head_dim` axis in a matmul of attention, batched over sequences and heads. The scores contract
        `head_dim`; the matmul with the values contracts the tokens, and `head_dim` is the values' other axis."""
        summed, batch = numbers
        tokens = {self._root(a) for a in self.tokens}
        each = {self._root(ins[0][i]) for i in batch[0]}
        if not each & tokens or each <= tokens:
            return
        named = [ins[0][i] for i in summed[0]]
        if {self._root(a) for a in named} <= tokens:
            sides = [
                [a for i, a in enumerate(axes) if i not in (*summed[k], *batch[k])] for k, axes in enumerate(ins[:2])
            ]
            named = [side[0] for side in sides if len(side) == 1]
        for axis in named:
            if self._size[axis] == self._head_dim and self._root(axis) not in tokens:
                self._name.setdefault(self._root(axis), "head_dim")

    def _of_tokens(self, axes: Axes) -> bool:
        """True if `axes`, the axes of a lookup's indices, include all axes of the tokens."""
        return {self._root(a) for a in self.tokens} <= {self._root(a) for a in axes}

    def _shape(self, axes: Axes) -> Shape:
        return tuple(self._size[a] for a in axes)

    def _reshape(self, before: Axes, after: Axes) -> None:
        """Match runs of adjacent axes of `before` and `after` with the same product of sizes. Join two single axes;
        record a single axis opposite a longer run as the product of that run."""
        for one, other in _aligned(self._shape(before), self._shape(after)):
            left, right = [before[i] for i in one], [after[i] for i in other]
            if len(left) == len(right) == 1:
                self._join(left[0], right[0])
            elif len(left) == 1:
                self._compose(left[0], tuple(right))
            elif len(right) == 1 and not any(self._put_together([a], right[0]) for a in left):
                self._compose(right[0], tuple(left))

    def _cut(self, before: Axes, after: Axes) -> None:
        """Record the axes of `after` as slices of the longer axes of `before`: RoPE splits an axis into halves and
        concatenates them again."""
        for whole, part in zip(before, after, strict=True):
            if self._size[whole] > self._size[part] > 1:
                self._part_of.setdefault(self._root(part), whole)

    def _put_together(self, parts: Sequence[int], out: int) -> bool:
        """Join `out` with the axis of equal size that all of `parts` were sliced from. Return True if joined."""
        wholes = {self._root(self._part_of[self._root(a)]) if self._root(a) in self._part_of else -1 for a in parts}
        if len(wholes) > 1 or -1 in wholes or self._size[out] != self._size[min(wholes)]:
            return False
        self._join(min(wholes), out)
        return True

    def _compose(self, whole: int, inner: Axes) -> None:
        """Record that the axis `whole` is the product of the axes `inner`."""
        root = self._root(whole)
        known = self._made_of.setdefault(root, inner)
        if known is not inner and [self._size[a] for a in known] == [self._size[a] for a in inner]:
            self._join_all(known, inner)


Place = tuple[int, int]
"""An operand's index (the output comes last), and one of its axes."""


def _pairs(name: str, params: Any, ins: list[Shape], out: Shape) -> Iterator[tuple[Place, Place]]:
    """Yield the pairs of axes that are the same dim in an equation with the primitive `name` and its `params`. `ins`
    and `out` are the shapes of the operands and of the result."""
    result = len(ins)
    if name == "dot_general":
        (left, right), (left_batch, right_batch) = params["dimension_numbers"]
        yield from (((0, a), (1, b)) for a, b in zip((*left, *left_batch), (*right, *right_batch), strict=True))
        free = [(0, i) for i in range(len(ins[0])) if i not in (*left, *left_batch)]
        free += [(1, i) for i in range(len(ins[1])) if i not in (*right, *right_batch)]
        yield from ((place, (result, i)) for i, place in enumerate([*((0, a) for a in left_batch), *free]))
    elif name == "stack":
        yield from (((k, i), (result, i + (i >= params["axis"]))) for k, n in enumerate(ins) for i in range(len(n)))
    elif name == "transpose":
        yield from (((0, a), (result, i)) for i, a in enumerate(params["permutation"]))
    elif name == "broadcast_in_dim":
        yield from (((0, i), (result, a)) for i, a in enumerate(params["broadcast_dimensions"]))
    elif name.startswith(("reduce_", "arg")) and "axes" in params:
        kept = [i for i in range(len(ins[0])) if i not in params["axes"]]
        yield from (((0, a), (result, i)) for i, a in enumerate(kept) if i < len(out))
    elif name == "squeeze":
        kept = [i for i in range(len(ins[0])) if i not in params["dimensions"]]
        yield from (((0, a), (result, i)) for i, a in enumerate(kept))
    elif name == "gather":
        numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
        dropped = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
        kept = [i for i in range(len(ins[0])) if i not in dropped]
        offsets = zip(kept, numbers.offset_dims, strict=True)
        yield from (((0, a), (result, i)) for a, i in offsets if sizes[a] == ins[0][a])
        batch = [i for i in range(len(out)) if i not in numbers.offset_dims]
        yield from (((1, a), (result, i)) for a, i in zip(range(len(ins[1]) - 1), batch, strict=True))
    elif name in ("concatenate", "split", "slice", "dynamic_slice", "pad", "dynamic_update_slice"):
        whole = [(k, n) for k, n in enumerate(ins) if len(n) == len(out)]
        yield from (((k, i), (result, i)) for k, n in whole for i in range(len(out)) if n[i] == out[i])
    elif name not in (*MIXING, "reshape"):
        fitting = [(k, n) for k, n in enumerate(ins) if len(n) == len(out) and _repeats(n, out)]
        yield from (((k, i), (result, i)) for k, n in fitting for i in range(len(out)) if n[i] == out[i])


def _repeats(shape: Shape, out: Shape) -> bool:
    """True if `shape` broadcasts to `out` by repeating axes of size 1."""
    return all(a in (1, b) for a, b in zip(shape, out, strict=True))


def _aligned(before: Shape, after: Shape) -> Iterator[tuple[list[int], list[int]]]:
    """Yield pairs of runs of adjacent axes, one of `before` and one of `after`, with the same product of sizes and as
    short as possible. Axes of size 1 are left out."""
    one = [i for i, n in enumerate(before) if n != 1]
    other = [i for i, n in enumerate(after) if n != 1]
    a = b = 0
    while a < len(one) and b < len(other):
        left, right = [one[a]], [other[b]]
        a, b = a + 1, b + 1
        while (size := prod(before[i] for i in left)) != (wanted := prod(after[i] for i in right)):
            if size < wanted and a < len(one):
                left.append(one[a])
                a += 1
            elif b < len(other):
                right.append(other[b])
                b += 1
            else:
                return
        yield left, right


def _open(jaxpr: Any) -> Any:
    """Return `jaxpr` without its closed-over constants."""
    return getattr(jaxpr, "jaxpr", jaxpr)
