"""Computes the transient bytes of one block's backward, op by op.

In eager torch, a saved tensor is live until its op's backward has run, and the gradient of a tensor until the backward
of the op that produced the tensor has run. So both overlap, for example in a feed-forward layer. Recomputed tensors
count as if they had been saved.
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
    """Returns the peak bytes in the backward of a block (`section`): gradients of activations, and weight gradients in
    the compute dtype, less the saved tensors that have been freed. If the backward is `split` into dgrad and wgrad, all
    saved tensors stay (`retain_graph`, in torch's `distributed/pipelining/_backward.py`), and output gradients wait for
    the wgrad.

    >>> most_bytes(sharded, "block", False) / 2**20  # MiB
    272.0
    """
    ops = sharded.ops[section]
    size = DTYPE_BYTES[sharded.plan.precision.compute]
    last = ops[-1]
    given = {last.op.output: _bytes_of(sharded, last, last.op.output)}
    """Bytes of each live gradient; those of the inputs of an add are one tensor."""
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
    """Returns the bytes of output gradients that a microbatch holds for a block (`section`) between dgrad and wgrad:
    those of all ops with weights (`stage_backward_input`, in torch's `distributed/pipelining/_backward.py`).

    >>> waiting_bytes(sharded, "block") / 2**20  # MiB
    420.0
    """
    return sum(_bytes_of(sharded, o, o.op.output) for o in sharded.ops[section] if o.op.params)


def by_ring(plan: Plan) -> bool:
    """True if `plan` uses ring attention."""
    return plan.attention is not None and plan.attention.method == "ring"


def _while_made(sharded: Sharded, o: OpSharding, made: dict[str, float]) -> float:
    """Returns the bytes that are live while the op `o` computes its input gradients, whose bytes by input are `made`.

    Ring attention accumulates the gradients of all chunks in fp32. Per chunk it holds keys and values, as received and
    repeated for each query head, and their gradients, for each query head and summed over query heads. For an op of a
    traced model, this is the recorded peak less what the op has freed.
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
    """Returns the local bytes of the tensor called `name`, or of its gradient, in the layout of the op `o`."""
    dims = sharded.model.tensor[name].dims
    layout = restrict(o.layout, dims) if name == o.op.output else o.needs(name, dims)
    return local_elements(sharded.plan, dims, layout) * _width(sharded.plan, name)


def _width(plan: Plan, name: str) -> int:
    dtype = {"compute": plan.precision.compute, "fp32": "fp32", "int": "int64"}[plan.model.tensor[name].dtype]
    return DTYPE_BYTES[dtype]


def products_inside(op: Op, dims: tuple[str, ...]) -> int:
    """Returns the number of intermediate tensors that the elementwise `op` saves, of the size of its output (with
    `dims`): silu(gate) in SwiGLU, and in experts also silu(gate) * up, to which router weights are applied.

    >>> swiglu = ops["ffn.swiglu"].op
    >>> products_inside(swiglu, ("batch", "sequence", "ffn"))
    1
    """
    if op.kind != "elementwise" or len(op.saves) < 2:
        return 0
    return 2 if SLOTS in dims else 1


def _let_go(sharded: Sharded, before: tuple[OpSharding, ...], o: OpSharding) -> float:
    """Returns the bytes of saved tensors that the backward of `o` frees: those that no earlier op (`before`) saved."""
    saved_before = {name for other in before for name in saves_of(sharded.plan, other.op)}
    names = [name for name in saves_of(sharded.plan, o.op) if name not in saved_before]
    if is_seen(sharded.plan, o.op):
        return inside_bytes(sharded, o) + sum(_bytes_of(sharded, o, name) for name in names)
    inside = products_inside(o.op, sharded.model.tensor[o.op.output].dims) * _bytes_of(sharded, o, o.op.output)
    return inside + sum(_bytes_of(sharded, o, name) for name in names)
