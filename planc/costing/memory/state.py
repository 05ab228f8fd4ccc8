"""Bytes of parameters, gradients and optimizer state on one device: persistent, and transient buffers.

FSDP gathers and reduces one unit at a time (Zhao et al. 2023, "PyTorch FSDP", arXiv 2304.11277, section 3).
"""

from __future__ import annotations

from collections.abc import Iterable

from planc.ir.collective import DTYPE_BYTES
from planc.ir.model import Section
from planc.ir.plan import Noun, Plan
from planc.ir.sharding import ParamSharding, Sharded
from planc.ir.updates import moments_of, updates_on_host
from planc.sharding.local import param_elements, stored_elements

LANDING = 1
"""Extra buffers of the size of a gathered block in torch: an all-gather writes to a buffer of the communication stream
and is copied out (`torch.distributed.fsdp`, `_fsdp_collectives.py`). XLA gathers in place."""
Held = list[tuple[ParamSharding, int]]
"""Parameters with their copies on a device."""


def resting(sharded: Sharded, held: Held, *, whole: bool = False) -> dict[str, float]:
    """Return the bytes of `params` (masters), `grads` and `optimizer` (moments) that a device holds between steps.

    Args:
        sharded: the plan with its layouts.
        held: the parameters on the device, each with its number of copies (layers).
        whole: True if the gradients of several microbatches are added up unsharded before they are reduced.

    >>> resting(sharded, [(params["layers.*.feed_forward.w1.weight"], 1)])  # a bf16 copy; fp32 over 16 x 8 devices
    {'params': 66060288.0, 'grads': 117440512.0, 'optimizer': 14680064.0}
    """
    kept = "optimizer" not in sharded.plan.offloaded
    return {
        "params": _params(sharded, held),
        "grads": _grads(sharded, held, whole=whole),
        "optimizer": _moments(sharded, held) if kept else 0.0,
    }


def _params(sharded: Sharded, held: Held) -> float:
    """Return the bytes of the master parameters as stored, and of the unsharded compute copy if it stays allocated.

    ZeRO-1 and ZeRO-2 store the masters with the optimizer state and compute with the copy. If the host updates the
    parameters and the gradients go there, so do the masters: ZeRO-3's shards are then in the compute dtype.
    """
    plan = sharded.plan
    away = updates_on_host(sharded) and not sharded.stack.policy.keeps_grads_from_host
    total = 0.0
    for p, n in held:
        size = DTYPE_BYTES[plan.store_dtype("params", p.param.region)]
        if away and not p.param.frozen:
            size = DTYPE_BYTES[plan.precision.compute] if p.stored["params"] else 0
        if "params" not in plan.offloaded and not _copy_is_master(plan, p):
            total += n * stored_elements(plan, p, p.stored["params"] or p.stored["optimizer"]) * size
        if _copy_stays(plan, p):
            total += n * param_elements(plan, p) * DTYPE_BYTES[plan.precision.compute]
    return total


def _grads(sharded: Sharded, held: Held, *, whole: bool) -> float:
    """Return the bytes of the gradients as stored or, if `whole`, of unsharded ones that add up over microbatches; with
    `Policy.keeps_narrow_grads`, also of those that a backward adds to them. 0 if they go to the host."""
    plan = sharded.plan
    if updates_on_host(sharded) and not sharded.stack.policy.keeps_grads_from_host:
        return 0.0
    beside = _narrow_grads(sharded, held)
    if not whole:
        return _noun(sharded, held, "grads") + beside
    return beside + sum(
        n * param_elements(plan, p) * DTYPE_BYTES[plan.store_dtype("grads", p.param.region)]
        for p, n in held
        if not p.param.frozen
    )


def _narrow_grads(sharded: Sharded, held: Held) -> float:
    plan = sharded.plan
    if not sharded.stack.policy.keeps_narrow_grads or plan.precision.compute == "fp32":
        return 0.0

    def added(p: ParamSharding) -> bool:
        return not (p.param.frozen or p.stored["grads"]) and plan.store_dtype("grads", p.param.region) == "fp32"

    return sum(n * param_elements(plan, p) * DTYPE_BYTES[plan.precision.compute] for p, n in held if added(p))


def bucket_bytes(sharded: Sharded, held: Held) -> float:
    """Return the bytes of the flat buffer in which the framework of `sharded` reduces gradients of its data-parallel
    ranks: `Policy.bucket_elements`, or all trained parameters in `held` if they are fewer.

    >>> bucket_bytes(sharded, [(p, 1) for p in sharded.params])  # planc reduces gradients where they are
    0.0
    """
    plan, most = sharded.plan, sharded.stack.policy.bucket_elements
    if not most or plan.mesh.devices == plan.pipeline:
        return 0.0
    elements = sum(n * param_elements(plan, p) for p, n in held if not p.param.frozen)
    return min(most, elements) * DTYPE_BYTES[plan.precision.reduce]


def _copy_stays(plan: Plan, p: ParamSharding) -> bool:
    """True if the unsharded compute copy of parameter `p` is allocated when memory peaks."""
    if p.stored["params"]:
        return not plan.gathers_each_pass(p.param.region)
    return bool(p.stored["optimizer"]) or plan.precision.compute != plan.store_dtype("params", p.param.region)


def _copy_is_master(plan: Plan, p: ParamSharding) -> bool:
    """True if the unsharded copy of parameter `p` is also its master, so that no shard is stored. This is so for a
    frozen parameter whose stored dtype is the compute dtype."""
    same = plan.precision.compute == plan.store_dtype("params", p.param.region)
    return p.param.frozen and same and bool(p.stored["optimizer"]) and not p.stored["params"]


def _moments(sharded: Sharded, held: Held) -> float:
    """Return the bytes of the optimizer's moments: two per parameter, but one for parameters that Muon updates."""
    moments = [(p, n * moments_of(sharded.plan, p.param.name)) for p, n in held]
    return _noun(sharded, moments, "optimizer")


def _noun(sharded: Sharded, held: Held, noun: Noun) -> float:
    plan = sharded.plan
    return sum(
        n * stored_elements(plan, p, p.stored[noun]) * DTYPE_BYTES[plan.store_dtype(noun, p.param.region)]
        for p, n in held
        if not p.param.frozen
    )


def update_bytes(sharded: Sharded, held: Held) -> float:
    """Return the bytes of the fp32 copies that the framework makes of low-precision gradients for the optimizer update.
    0 if it updates from the gradients as they are, or if moments are in low precision.

    `held` are the parameters of a device of `sharded`, each with its number of copies.

    >>> update_bytes(sharded, [(p, 1) for p in sharded.params])  # planc's own update takes fp32 gradients
    0.0
    """
    plan = sharded.plan
    if not sharded.stack.policy.updates_in_fp32:
        return 0.0

    def copied(p: ParamSharding) -> bool:
        region = p.param.region
        narrow = plan.store_dtype("grads", region) != "fp32" and plan.store_dtype("optimizer", region) == "fp32"
        return narrow and not p.param.frozen

    return sum(n * stored_elements(plan, p, p.stored["optimizer"]) * DTYPE_BYTES["fp32"] for p, n in held if copied(p))


def temporaries(sharded: Sharded, held: Held) -> float:
    """Return the bytes of the tensors that the framework's update allocates for all parameters at once, as large as
    their masters (`_multi_tensor_adamw` in torch/optim/adamw.py). `held` are the parameters of a device of `sharded`,
    each with its number of copies.

    >>> temporaries(sharded, [(p, 1) for p in sharded.params])  # planc's own update is one kernel
    0.0
    """
    away = "optimizer" in sharded.plan.offloaded
    return 0.0 if away else sharded.stack.policy.update_copies * _noun(sharded, held, "optimizer")


def root_bytes(sharded: Sharded, held: Held) -> tuple[float, float]:
    """Return the bytes of the gathered parameters outside blocks, and of their unsharded gradients, which FSDP1 keeps
    from their first use in a pass to its end (torch/distributed/fsdp/_runtime_utils.py). `held` is as in
    `state_buffers`.

    >>> root_bytes(sharded, [(p, 1) for p in sharded.params])  # `gather params per step`: none are gathered in a pass
    (0.0, 0.0)
    """
    plan = sharded.plan
    root = [p for p, _ in held if p.stored["params"] and not set(p.param.sections) & set(plan.model.blocks)]
    root = [p for p in root if plan.gathers_each_pass(p.param.region)]
    size = DTYPE_BYTES[plan.precision.compute]
    trained = sum(param_elements(plan, p) for p in root if not p.param.frozen)
    return float(size * sum(param_elements(plan, p) for p in root)), float(size * trained)


def state_buffers(sharded: Sharded, held: Held) -> tuple[float, float]:
    """Return the bytes of the gathered parameters in memory at the same time, and of a block's unsharded gradient.

    `held` are the parameters of a device of `sharded`, each with its number of copies.

    >>> state_buffers(sharded, [(p, 1) for p in sharded.params])  # `gather params per step`: no gathered blocks
    (0.0, 0.0)
    """
    return largest(passing_bytes(sharded, (p for p, _ in held)).values())


PassingBytes = tuple[float, float]
"""For a section: bytes of its gathered copies, as many as exist at once, and of its whole gradient."""


def passing_bytes(sharded: Sharded, params: Iterable[ParamSharding]) -> dict[Section, PassingBytes]:
    """Return the temporary bytes of each section, for its parameters in `params`: gathered copies, unsharded gradients.

    If parameters are gathered in each pass, the copies include prefetched blocks and, with `torch.distributed.fsdp`,
    `LANDING` more. All layers of a bucket are gathered and reduced as one.
    """
    plan = sharded.plan
    ahead = plan.buckets_ahead(sharded.stack.policy.prefetched - 1)
    blocks = 1 + ahead + LANDING * (not sharded.stack.xla and not sharded.stack.policy.fsdp1)
    gathered, reduced = blocks * DTYPE_BYTES[plan.precision.compute], DTYPE_BYTES[plan.precision.reduce]
    found: dict[Section, PassingBytes] = {}
    for p in params:
        together = plan.bucket_layers if set(p.param.sections) & set(plan.model.blocks) else 1
        elements = together * param_elements(plan, p)
        whole_gradient = reduced * elements * bool(p.stored["grads"] and not p.param.frozen)
        again = bool(p.stored["params"]) and plan.gathers_each_pass(p.param.region)
        mine = gathered * elements * again, whole_gradient
        for section in p.param.sections:
            others = found.get(section, (0.0, 0.0))
            found[section] = others[0] + mine[0], others[1] + mine[1]
    return found


def largest(sections: Iterable[PassingBytes]) -> PassingBytes:
    """Return the largest gathered bytes and the largest gradient bytes of any of the `sections`. Buffers of two
    sections are not allocated at the same time.

    >>> largest([(3.0, 1.0), (2.0, 4.0)])
    (3.0, 4.0)
    """
    gathered = reduced = 0.0
    for one, other in sections:
        gathered, reduced = max(gathered, one), max(reduced, other)
    return gathered, reduced


def communicators(sharded: Sharded) -> int:
    """Return the number of communicators of a device of `sharded`: one for each axis in use, and the one of all ranks.

    >>> communicators(sharded)  # pp, fsdp, tp and all
    4
    """
    return len([a for a in sharded.plan.mesh.every.values() if a.size > 1]) + 1
