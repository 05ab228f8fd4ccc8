"""Local sizes: elements and bytes of a tensor on one device under a layout."""

from __future__ import annotations

from math import ceil, prod

from planc.ir.cache import cached_on
from planc.ir.collective import DTYPE_BYTES
from planc.ir.model import SLOTS
from planc.ir.plan import Plan
from planc.ir.sharding import Layout, ParamSharding


def dim_length(plan: Plan, dim: str) -> int:
    """Global length of a dim for one microbatch.

    `batch` counts the sequences of one microbatch over all data-parallel ranks. `slots` is the number of tokens of
    one expert under balanced routing, times the capacity factor.
    """
    if dim == SLOTS:
        tokens = dim_length(plan, "batch") * plan.batch.sequence_tokens
        return ceil(tokens * plan.model.top_k * plan.route.factor / plan.model.sizes["experts"])
    if dim == "batch":
        return plan.batch.microbatch_sequences * plan.data_parallel
    if dim == "sequence":
        return plan.batch.sequence_tokens
    return plan.model.sizes[dim]


def local_elements(plan: Plan, dims: tuple[str, ...], layout: Layout) -> float:
    """Elements of the largest local block: every divided dim rounded up, but for slots, which are a mean."""
    return prod(local_length(plan, d, layout.get(d, ())) for d in dims)


def local_length(plan: Plan, dim: str, axes: tuple[str, ...]) -> float:
    """Length of a dim on one device when these axes divide it, rounded up; slots are a mean and not rounded."""
    share = dim_length(plan, dim) / plan.mesh.size(*axes)
    return share if dim == SLOTS else ceil(share)


@cached_on(lambda plan, tensor, layout: (plan.cache, (tensor, *layout.items())))
def tensor_bytes(plan: Plan, tensor: str, layout: Layout) -> float:
    """Bytes of one activation on one device, for one microbatch."""
    t = plan.model.tensor[tensor]
    dtype = {"compute": plan.precision.compute, "fp32": "fp32", "int": "int64"}[t.dtype]
    return local_elements(plan, t.dims, layout) * DTYPE_BYTES[dtype]


@cached_on(lambda plan, p: (plan.cache, (p.param.name, p.compute)))
def param_elements(plan: Plan, p: ParamSharding) -> int:
    """Elements of one copy of a parameter on one device while it is used (after TP)."""
    shape = plan.model.shape(p.param)
    return prod(ceil(n / plan.mesh.size(*axes)) for n, axes in zip(shape, p.compute, strict=True))


def stored_elements(plan: Plan, p: ParamSharding, axes: tuple[str, ...]) -> float:
    """Elements of one copy on one device when kept divided over `axes`: an even share."""
    return param_elements(plan, p) / plan.mesh.size(*axes)
