"""Local sizes: elements and bytes of a tensor on one device in a layout."""

from __future__ import annotations

from math import ceil, prod

from planc.ir.cache import cached_on
from planc.ir.collective import DTYPE_BYTES
from planc.ir.model import SLOTS
from planc.ir.plan import Plan
from planc.ir.sharding import Layout, ParamSharding, Sharded


def dim_length(plan: Plan, dim: str) -> int:
    """Return the global length of `dim` for one microbatch of `plan`.

    `batch` counts the sequences of one microbatch over all data-parallel ranks. `slots` is the number of tokens of one
    expert under balanced routing, times the capacity factor.

    >>> dim_length(plan, "batch"), dim_length(plan, "ffn")  # fsdp 16 x microbatch 1
    (16, 28672)
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
    """Return the number of elements of the largest local shard of a tensor with these `dims` in a `layout`.

    A sharded dim's length is rounded up, except that of `slots` (tokens per expert), which is an average.

    >>> local_elements(plan, ("batch", "sequence", "ffn"), {"batch": ("fsdp",), "ffn": ("tp",)}) == 1 * 8192 * 3584
    True
    """
    return prod(local_length(plan, d, layout.get(d, ())) for d in dims)


def local_length(plan: Plan, dim: str, axes: tuple[str, ...]) -> float:
    """Return the length of `dim` on one device if these `axes` shard it: rounded up, except for `slots` (an average).

    >>> local_length(plan, "ffn", ("tp",))  # 28672 / 8
    3584
    """
    share = dim_length(plan, dim) / plan.mesh.size(*axes)
    return share if dim == SLOTS else ceil(share)


@cached_on(lambda plan, tensor, layout: (plan.cache, (tensor, *layout.items())))
def tensor_bytes(plan: Plan, tensor: str, layout: Layout) -> float:
    """Return the bytes of the activation called `tensor` on one device in this `layout`, for one microbatch.

    >>> tensor_bytes(plan, "hidden", {"batch": ("fsdp",)}) == 2 * 8192 * 8192  # bf16
    True
    """
    t = plan.model.tensor[tensor]
    dtype = {"compute": plan.precision.compute, "fp32": "fp32", "int": "int64"}[t.dtype]
    return local_elements(plan, t.dims, layout) * DTYPE_BYTES[dtype]


@cached_on(lambda plan, p: (plan.cache, (p.param.name, p.compute)))
def param_elements(plan: Plan, p: ParamSharding) -> int:
    """Return the elements of one layer's parameter `p` on one device while in use: gathered by FSDP, sharded by TP.

    >>> param_elements(plan, params["layers.*.feed_forward.w1.weight"]) == 8192 * 28672 / 8
    True
    """
    shape = plan.model.shape(p.param)
    return prod(ceil(n / plan.mesh.size(*axes)) for n, axes in zip(shape, p.compute, strict=True))


def stored_elements(plan: Plan, p: ParamSharding, axes: tuple[str, ...]) -> float:
    """Return the elements of one layer's parameter `p` that one device stores, if FSDP shards it evenly over `axes`.

    >>> stored_elements(plan, params["layers.*.feed_forward.w1.weight"], ("fsdp",)) == 8192 * 28672 / 8 / 16
    True
    """
    return param_elements(plan, p) / plan.mesh.size(*axes)


def head_elements(sharded: Sharded) -> float:
    """Return the number of elements of the head's weight on one device in the layout of use of `sharded`.

    >>> head_elements(sharded) == 128256 / 8 * 8192  # vocab over tp 8
    True
    """
    ops = sharded.ops["last"]
    head = next(o.op for o in ops if o.op.output == ops[-1].op.inputs[0])
    return sum(param_elements(sharded.plan, sharded.param[name]) for name in head.params)
