"""Bytes that come and go while the backward of one block runs, op by op.

Eager torch frees a saved tensor when the op that saved it has its gradients, and a gradient when the op that made the
tensor has used it. In between there are both: the gradients of a feed-forward layer beside what it saved. What is
recomputed is there before, as if it had been saved.
"""

from __future__ import annotations

from planc.backends.cuda.analysis.own_code import backward_bytes, inside_bytes, is_seen, saves_of
from planc.ir.cache import cached_on
from planc.ir.collective import DTYPE_BYTES
from planc.ir.model import SLOTS, Op, Section
from planc.ir.plan import Plan
from planc.ir.sharding import OpSharding, Sharded
from planc.sharding.local import local_elements, param_elements
from planc.sharding.redistribute import restrict


@cached_on(lambda sharded, section, split: (sharded.plan.cache, (section, split)))
def most_bytes(sharded: Sharded, section: Section, split: bool) -> float:
    """The most bytes that there are in the backward of a block (`section`) beyond those that it saved, its weights'
    gradients in the compute dtype with them; at least those of the gradient that it is given. A backward that is
    `split` leaves the gradients of weights for later, with all that the block saved (`retain_graph`, in torch's
    `distributed/pipelining/_backward.py`) and the gradients that they are made of.

    >>> most_bytes(sharded, "block", False) / 2**20  # MiB
    272.0
    """
    ops = sharded.ops[section]
    size = DTYPE_BYTES[sharded.plan.precision.compute]
    last = ops[-1]
    given = {last.op.output: _bytes_of(sharded, last, last.op.output)}
    """Bytes of each gradient that is there; those of a sum's inputs are one tensor."""
    held, freed, weights, most = dict(given), 0.0, 0.0, given[last.op.output]
    for at in range(len(ops) - 1, -1, -1):
        o = ops[at]
        if not o.op.has_backward:
            continue
        arrived = given.get(o.op.output, 0.0)
        if o.op.kind == "add":
            if is_seen(sharded.plan, o.op):
                most = max(most, sum(held.values()) + backward_bytes(sharded, o) + weights - freed)
                freed += 0.0 if split else inside_bytes(sharded, o)
            passed = [name for name in o.op.inputs if name not in o.op.fixed]
            held[passed[0]] = held.pop(o.op.output, 0.0) + held.get(passed[0], 0.0)
            given.update(dict.fromkeys(passed, arrived))
            continue
        gathered = max(0.0, _bytes_of(sharded, o, o.op.output) - arrived)
        made = {name: _bytes_of(sharded, o, name) for name in o.op.inputs if name not in ("tokens", *o.op.fixed)}
        later = split and bool(o.op.params)
        trained = [p for p in o.op.params if p not in o.op.fixed]
        weights += 0.0 if later else size * sum(param_elements(sharded.plan, sharded.param[p]) for p in trained)
        most = max(most, sum(held.values()) + gathered + _while_made(sharded, o, made) + weights - freed)
        if later:
            held[o.op.output] = arrived + gathered
        else:
            held.pop(o.op.output, None)
            freed += 0.0 if split else _let_go(sharded, ops[:at], o)
        for name, amount in made.items():
            held[name] = given[name] = max(amount, held.get(name, 0.0))
    return most


@cached_on(lambda sharded, section: (sharded.plan.cache, section))
def waiting_bytes(sharded: Sharded, section: Section) -> float:
    """Bytes of gradients that a microbatch holds for a block (`section`) while the gradients of its weights are still
    to come: those of the outputs of all ops that have weights, as these made them (`stage_backward_input`, in torch's
    `distributed/pipelining/_backward.py`).

    >>> waiting_bytes(sharded, "block") / 2**20  # MiB
    420.0
    """
    return sum(_bytes_of(sharded, o, o.op.output) for o in sharded.ops[section] if o.op.params)


def by_ring(plan: Plan) -> bool:
    """True if keys and values travel round the ranks of `plan`, whose parts of attention are put together."""
    return plan.attention is not None and plan.attention.method == "ring"


def _while_made(sharded: Sharded, o: OpSharding, made: dict[str, float]) -> float:
    """Bytes that there are while the op `o` makes the gradients of its inputs, at least those that it has `made`, less
    what its own code lets go meanwhile.

    A ring adds up the gradients of all parts in fp32. For one part there are its keys and values, as they came and once
    for each query head, its gradients, as wide, and the part's keys' summed over the query heads.
    """
    if is_seen(sharded.plan, o.op):
        return backward_bytes(sharded, o)
    total = sum(made.values())
    if o.op.kind != "attention" or not by_ring(sharded.plan):
        return total
    query, *others = (made[name] for name in o.op.inputs)
    in_fp32 = total * DTYPE_BYTES["fp32"] / DTYPE_BYTES[sharded.plan.precision.compute]
    for_each_head = 2 * query  # keys and values, or their gradients
    return in_fp32 + 2 * sum(others) + for_each_head + query + for_each_head


def _bytes_of(sharded: Sharded, o: OpSharding, name: str) -> float:
    """Bytes of a tensor, or its gradient, as the op `o` takes or makes it."""
    dims = sharded.model.tensor[name].dims
    layout = restrict(o.layout, dims) if name == o.op.output else o.needs(name, dims)
    return local_elements(sharded.plan, dims, layout) * _width(sharded.plan, name)


def _width(plan: Plan, name: str) -> int:
    dtype = {"compute": plan.precision.compute, "fp32": "fp32", "int": "int64"}[plan.model.tensor[name].dtype]
    return DTYPE_BYTES[dtype]


def products_inside(op: Op, dims: tuple[str, ...]) -> int:
    """The number of tensors like its output, whose `dims` are given, that the elementwise `op` saves on the way to it:
    silu(gate); of experts also its product with the other half, before the rows' weights multiply it.

    >>> swiglu = ops["ffn.swiglu"].op
    >>> products_inside(swiglu, ("batch", "sequence", "ffn"))
    1
    """
    if op.kind != "elementwise" or len(op.saves) < 2:
        return 0
    return 2 if SLOTS in dims else 1


def _let_go(sharded: Sharded, before: tuple[OpSharding, ...], o: OpSharding) -> float:
    """Bytes of saved tensors that no op `before` this one saved too: its backward is their last use."""
    saved_before = {name for other in before for name in saves_of(sharded.plan, other.op)}
    names = [name for name in saves_of(sharded.plan, o.op) if name not in saved_before]
    if is_seen(sharded.plan, o.op):
        return inside_bytes(sharded, o) + sum(_bytes_of(sharded, o, name) for name in names)
    inside = products_inside(o.op, sharded.model.tensor[o.op.output].dims) * _bytes_of(sharded, o, o.op.output)
    return inside + sum(_bytes_of(sharded, o, name) for name in names)
