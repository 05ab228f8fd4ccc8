"""Seconds of transfers between a device and its host's memory, for the state and tensors of `offload` sentences."""

from __future__ import annotations

from planc.ir.cache import cached_on
from planc.ir.collective import DTYPE_BYTES
from planc.ir.model import EXPERTS
from planc.ir.plan import Noun
from planc.ir.sharding import Layout, OpSharding, Sharded
from planc.ir.updates import moments_of, updates_on_host
from planc.sharding.local import stored_elements, tensor_bytes
from planc.sharding.recompute import replay
from planc.sharding.stage_assignment import copies_on, microbatches_each, sections_on, virtual_stages

STATE: tuple[Noun, ...] = ("params", "optimizer")
"""State that a plan may keep in host memory."""
HOST_UPDATES_PER_S = 1.25e9
"""Parameters that AdamW on a host updates per second, for all of its devices together. Reported for DeepSpeed's CPUAdam
on hosts of eight A100: 0.9 billion (1.2 B parameters in 1.4 s) and 1.8 billion (72 B on four hosts in about 10 s:
DeepSpeed issue 6834); with two A100 about 1.3 (3.1 B in a step of 2.4 to 3.1 s: pull request 7474)."""


def offload_s(sharded: Sharded, rank: int, passes_s: float, late_s: float) -> float:
    """Return the exposed seconds of a step's transfers to and from host memory on pipeline rank `rank`.

    State is copied in and out once a step, around the optimizer update, fully exposed. On TPUs parameters are copied in
    twice: for the compute copy and for the update. If the framework updates on the host (`updates_on_host`), its update
    takes the place of these copies, with one of the gradients to the host and one of the parameters back; parameters
    that stay on the host are copied in for each pass instead. A saved tensor is copied out in the forward, and back in
    the backward. Copies of a pass overlap with compute and with waits for other devices and pipeline ranks, `passes_s`
    seconds in a step.
    In planc's own programs for torch, compute waits for both copies, since `torch.autograd.graph.save_on_cpu` runs on
    its stream. Exposed once-per-step collectives (`late_s` seconds) run while a microbatch waits for its copies.

    >>> offload_s(sharded, 0, passes_s=6.0, late_s=0.0)  # the plan offloads nothing
    0.0
    """
    plan = sharded.plan
    bandwidth = plan.cluster.chip.host_bandwidth_bytes_per_s / plan.cluster.chip.devices
    if not plan.offloads:
        return 0.0
    state = transferred_state_bytes(sharded, rank) / bandwidth
    saved = 2 * microbatches_each(plan) * saved_bytes(sharded, rank) / bandwidth
    if updates_on_host(sharded):
        trained = _trained_elements(sharded, rank)
        sizes = DTYPE_BYTES[plan.precision.reduce], DTYPE_BYTES[plan.precision.compute]
        away = "params" in plan.offloaded
        devices = min(plan.cluster.host_chips * plan.cluster.chip.devices, plan.mesh.devices)
        state = trained * (devices / HOST_UPDATES_PER_S + (sizes[0] + sizes[1] * (not away)) / bandwidth)
        saved += 2 * microbatches_each(plan) * away * trained * sizes[1] / bandwidth
    waits = sharded.stack.own and not sharded.stack.xla
    wait_s = saved if waits else max(0.0, saved - passes_s)
    return state + wait_s - min(late_s, wait_s / microbatches_each(plan))


def _trained_elements(sharded: Sharded, rank: int) -> float:
    """Return the number of parameters that a device of pipeline rank `rank` updates."""
    plan, sections = sharded.plan, sections_on(sharded.plan, rank)
    trained = [p for p in sharded.params if not p.param.frozen]
    return sum(copies_on(plan, p.param, sections) * stored_elements(plan, p, p.stored["optimizer"]) for p in trained)


def state_bytes(sharded: Sharded, rank: int) -> float:
    """Return the bytes of state of pipeline rank `rank` in host memory: optimizer moments and master parameters.

    >>> state_bytes(sharded, 0)  # the plan offloads nothing
    0.0
    """
    return sum((_bytes_of(sharded, rank, noun) for noun in STATE if noun in sharded.plan.offloaded), 0.0)


def host_bytes(sharded: Sharded, rank: int, in_flight: int) -> float:
    """Return the bytes that one device of pipeline rank `rank` keeps in host memory: its state, gradients if the host
    updates the parameters, and the saved tensors of `in_flight` microbatches of the rank's virtual stages.

    >>> host_bytes(sharded, 0, in_flight=4)  # the plan offloads nothing
    0.0
    """
    plan = sharded.plan
    grads = _trained_elements(sharded, rank) * DTYPE_BYTES[plan.precision.reduce] if updates_on_host(sharded) else 0.0
    saved = saved_bytes(sharded, rank) * in_flight / len(virtual_stages(plan, rank))
    return state_bytes(sharded, rank) + grads + saved


def transferred_state_bytes(sharded: Sharded, rank: int) -> float:
    """Return the bytes of state of pipeline rank `rank` that are copied to and from host memory in a step.

    >>> transferred_state_bytes(sharded, 0)  # the plan offloads nothing
    0.0
    """
    passes = {"optimizer": 2, "params": 3 if sharded.stack.xla else 2}
    away = sharded.plan.offloaded
    return sum((passes[noun] * _bytes_of(sharded, rank, noun) for noun in STATE if noun in away), 0.0)


def _bytes_of(sharded: Sharded, rank: int, noun: Noun) -> float:
    """Return the bytes of `noun` (params: the master parameters, optimizer: the moments) on pipeline rank `rank`."""
    plan, total = sharded.plan, 0.0
    sections = sections_on(plan, rank)
    for p in sharded.params:
        axes = p.stored[noun] or p.stored["optimizer"]
        held = copies_on(plan, p.param, sections) * stored_elements(plan, p, axes)
        held *= moments_of(plan, p.param.name) if noun == "optimizer" else 1
        total += held * DTYPE_BYTES[plan.store_dtype(noun, p.param.region)]
    return total


def saved_bytes(sharded: Sharded, rank: int) -> float:
    """Return the bytes of saved tensors that a device of pipeline rank `rank` copies to its host for one microbatch, as
    `torch.autograd.graph.save_on_cpu` does.

    >>> saved_bytes(sharded, 0)  # the plan offloads nothing
    0.0
    """
    plan, names = sharded.plan, sharded.plan.offloaded
    total = 0.0
    for section, copies in sections_on(plan, rank).items():
        if section in plan.model.blocks:
            kept = [t for t in replay(plan, section).saved if t in names]
            total += copies * sum(saved_tensor_bytes(sharded, t, section) for t in kept)
    return total


def saved_tensor_bytes(sharded: Sharded, tensor: str, section: str) -> float:
    """Return the bytes of `tensor` that a `section` saves on one device for one microbatch, in all layouts together.

    The ops that save the tensor determine the layouts. If no op saves it, the recomputed ops that read it do.

    >>> product = ops["ffn.down"].op.inputs[0]
    >>> saved_tensor_bytes(sharded, product, "block") == 2 * 8192 * 28672 / 8  # bf16, over tp 8
    True
    """
    return sum(tensor_bytes(sharded.plan, tensor, layout) for layout in _saved_layouts(sharded, tensor, section))


@cached_on(lambda sharded, tensor, section: (sharded.layout_cache, (tensor, section)))
def _saved_layouts(sharded: Sharded, tensor: str, section: str) -> list[Layout]:
    dims = sharded.model.tensor[tensor].dims
    ops = sharded.ops[section]
    later = [o for o in ops if tensor in o.op.saves] or [o for o in ops if tensor in o.op.inputs]
    found = [_before_gather(o, tensor) if _saves_divided(sharded, o) else None for o in later]
    layouts = [o.needs(tensor, dims) if before is None else before for o, before in zip(later, found, strict=True)]
    return list({repr(layout): layout for layout in layouts}.values())


def _saves_divided(sharded: Sharded, o: OpSharding) -> bool:
    """True if op `o` saves its input before the gather. An expert's matmul does not: the dispatcher gathers it."""
    policy, params = sharded.stack.policy, sharded.model.param
    shared = policy.shared_beside_dispatch and "shared_ffn" in {d for p in o.op.params for d in params[p].dims}
    return policy.saves_divided and o.op.region != EXPERTS and not shared


def _before_gather(o: OpSharding, tensor: str) -> Layout | None:
    """Return the layout of `tensor` before it was redistributed for op `o`; None if it was not redistributed."""
    return next((m.before for m in o.redistributions if m is not None and m.tensor == tensor), None)
