"""Computes the memory of a user's own modules in a traced model from the bytes recorded for their ops."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod

from planc.costing.step.offload import saved_tensor_bytes
from planc.ir.cache import cached_on
from planc.ir.collective import DTYPE_BYTES
from planc.ir.model import Op, Section
from planc.ir.plan import Plan
from planc.ir.saved_by_code import Elements, SavedByCode
from planc.ir.sharding import Layout, OpSharding, Sharded
from planc.sharding.local import local_elements, tensor_bytes
from planc.sharding.redistribute import restrict


def code_of(plan: Plan, op: Op) -> SavedByCode | None:
    """Returns the recorded memory of the code of `op` at the sequence length of `plan`; None if it was not traced."""
    tokens = plan.batch.sequence_tokens
    return next((code for code in op.own_code if tokens <= code.up_to or not code.up_to), None)


def is_seen(plan: Plan, op: Op) -> bool:
    """True if the code of `op` was traced for the sequence length of `plan`, so that its memory is known."""
    return code_of(plan, op) is not None


@cached_on(lambda plan, section: (plan.cache, section))
def ops_by_code(plan: Plan, section: Section) -> tuple[Op, ...]:
    """Returns the ops of a `section` of the model of `plan`; traced ones with the saved tensors of their code."""
    return tuple(replace(op, saves=saves_of(plan, op)) if is_seen(plan, op) else op for op in plan.model.ops[section])


def saves_of(plan: Plan, op: Op) -> tuple[str, ...]:
    """Returns the tensors that `op` saves for its backward under `plan`: those recorded for its code, if any."""
    code = code_of(plan, op)
    return op.saves if code is None else code.saves


def named_bytes(sharded: Sharded, tensor: str, section: Section) -> float:
    """Returns the local bytes of `tensor` that a `section` saves per microbatch, one copy for each layout that ops
    need.

    Attention and a parallel feed-forward layer both gather their input, and save both copies.
    """
    ops = sharded.ops[section]
    if not any(is_seen(sharded.plan, o.op) for o in ops):
        return saved_tensor_bytes(sharded, tensor, section)
    dims = sharded.model.tensor[tensor].dims
    later = [o for o in ops if tensor in saves_of(sharded.plan, o.op)] or [o for o in ops if tensor in o.op.inputs]
    layouts = {(repr(o.needs(tensor, dims)), _gathered_by(o, tensor)): o.needs(tensor, dims) for o in later}
    return sum(tensor_bytes(sharded.plan, tensor, layout) for layout in layouts.values())


def _gathered_by(o: OpSharding, tensor: str) -> str:
    """Returns the path of the module that gathers `tensor` as an input of the op `o`; "" if no module does."""
    moved = any(m is not None and m.tensor == tensor and m.steps[0].kind != "slice" for m in o.redistributions)
    return o.op.module.rpartition(".")[0] if moved else ""


def inside_bytes(sharded: Sharded, o: OpSharding) -> float:
    """Returns the bytes that the code of the op `o` saves for its backward, besides tensors of the op graph."""
    code = code_of(sharded.plan, o.op)
    return _bytes(sharded, o, code.inside) if code is not None else 0.0


def backward_bytes(sharded: Sharded, o: OpSharding) -> float:
    """Returns the peak bytes in the backward of the op `o`, net of saved tensors freed by then; at least 0."""
    code = code_of(sharded.plan, o.op)
    moments = code.moments if code is not None else ()
    return max((_bytes(sharded, o, m.made) - _bytes(sharded, o, m.freed) for m in moments), default=0.0)


def _bytes(sharded: Sharded, o: OpSharding, elements: Iterable[Elements]) -> float:
    plan = sharded.plan
    return sum(
        _elements(plan, _layout(sharded, o, e.dims), e) * _share_of_keys(plan, o, e) * _width(plan, e) for e in elements
    )


def _share_of_keys(plan: Plan, o: OpSharding, e: Elements) -> float:
    """Returns the fraction of the key heads that the local query heads use, if keys are replicated; else 1."""
    if "kv_heads" not in e.dims or "kv_heads" in o.layout or "heads" not in o.layout:
        return 1.0
    heads, keys = plan.model.sizes["heads"], plan.model.sizes["kv_heads"]
    here = heads // plan.mesh.size(*o.layout["heads"])
    return max(1, here // (heads // keys)) / keys


def _layout(sharded: Sharded, o: OpSharding, dims: tuple[str, ...]) -> Layout:
    """Returns the layout of an op's intermediate tensors with these `dims`. Positions and masks, which the model
    computes before the blocks, have a replicated sequence."""
    layout = restrict(o.layout, dims)
    at_begin = o.op.output == sharded.model.ops["first"][-1].output and o.op in sharded.model.ops["first"]
    if at_begin and set(dims) <= {"batch", "sequence"}:
        layout = {dim: axes for dim, axes in layout.items() if dim != "sequence"}
    return layout


def _elements(plan: Plan, layout: Layout, e: Elements) -> float:
    """Returns the local elements of `e`. A second sequence dim is that of attention's keys, which is unsharded."""
    again = e.dims.count("sequence") - 1
    once = tuple(dict.fromkeys(e.dims))
    return e.copies * local_elements(plan, once, layout) * prod([plan.batch.sequence_tokens] * max(0, again))


def _width(plan: Plan, e: Elements) -> int:
    dtypes = {"compute": plan.precision.compute, "fp32": "fp32", "int": "int64"}
    return 1 if e.dtype == "byte" else DTYPE_BYTES[dtypes[e.dtype]]
