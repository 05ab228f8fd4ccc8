"""The rooflines of a plan: for each kind of parallelism, the limit at which its transfers take as long as its matmuls.

Closed forms for one layer's matmuls on a cluster's links, with efficiencies but without latencies. They show in which
direction to change a plan; `planc.costing.step.step_time` computes its step time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from planc.costing.machine.group import device_group
from planc.costing.machine.roofline import critical_expert_ffn, critical_tokens, critical_tokens_per_device, largest_tp
from planc.costing.machine.topology import DeviceGroup
from planc.diag.fast_dataclass import dataclass
from planc.ir.base import Value
from planc.ir.model import EXPERTS
from planc.ir.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Bound(Value):
    """A figure of the plan (`has`), and the limit at which transfers or memory traffic take as long as the matmuls."""

    what: str
    axis: str
    """The mesh axes joined by `+`; "" for a single chip."""
    has: float
    limit: float
    side: Literal["least", "most"]
    """The compute-bound side of `limit`: values of at `least` or at `most` the limit."""

    @property
    def by_compute(self) -> bool:
        """True if the plan is on the compute-bound side of the limit."""
        return self.has >= self.limit if self.side == "least" else self.has <= self.limit


def bounds(plan: Plan) -> tuple[Bound, ...]:
    """Return the rooflines of `plan`: one for matmuls on a chip, and one for each kind of parallelism that it uses.

    >>> [(b.axis, f"{b.has:.0f} of {b.limit:.0f}", b.by_compute) for b in bounds(plan)]
    [('', '8192 of 295', True), ('fsdp', '32768 of 2472', True), ('tp', '8 of 13', True)]
    """
    return (_chip(plan), *_data(plan), *_tensor(plan), *_experts(plan))


def _chip(plan: Plan) -> Bound:
    """Return the bound on tokens per matmul above which its FLOPs take longer than reading its weights from memory."""
    narrow = {q.dtype for q in plan.quantize}
    dtype = narrow.pop() if len(narrow) == 1 and narrow <= plan.cluster.chip.flops_per_s.keys() else "bf16"
    return Bound(
        what="tokens in a matmul, for weights to stream from memory in time",
        axis="",
        has=_tokens_at_once(plan),
        limit=critical_tokens(plan.cluster.chip, dtype),
        side="least",
    )


def _tokens_at_once(plan: Plan) -> float:
    """Return how many tokens of a microbatch one device's matmuls process."""
    inside = plan.mesh.size(*(a for a in plan.axes_of("sequence") if a not in plan.data_axes))
    return plan.batch.microbatch_sequences * plan.batch.sequence_tokens / inside


def _data(plan: Plan) -> Iterator[Bound]:
    """Yield the bound on tokens per device above which matmuls take longer than the gather of weights or the reduction
    of gradients."""
    axes = plan.mesh.in_order({*plan.data_axes, *plan.store("params"), *plan.axes_of("sequence")})
    group = _group_over(plan, axes)
    if group is None:
        return
    divided = plan.mesh.size(*_tensor_axes(plan))
    often = plan.gathers_each_pass()
    tokens = _tokens_at_once(plan) * (1 if often else plan.microbatches)
    yield Bound(
        what=f"tokens a device for each time that weights move ({'microbatch' if often else 'step'})",
        axis="+".join(axes),
        has=tokens / divided,
        limit=critical_tokens_per_device(plan.cluster, group, divided=divided),
        side="least",
    )


def _tensor_axes(plan: Plan) -> tuple[str, ...]:
    return plan.axes_of("ffn") if "ffn" in plan.model.sizes else ()


def _tensor(plan: Plan) -> Iterator[Bound]:
    axes = _tensor_axes(plan)
    group = _group_over(plan, axes)
    if group is not None:
        yield Bound(
            what="ways of tensor parallelism",
            axis="+".join(axes),
            has=group.size,
            limit=largest_tp(plan.cluster, group, plan.model.sizes["ffn"]),
            side="most",
        )


def _experts(plan: Plan) -> Iterator[Bound]:
    axes = plan.axes_of("experts", EXPERTS) if "experts" in plan.model.sizes else ()
    group = _group_over(plan, axes)
    if group is not None:
        yield Bound(
            what="width of an expert, for tokens to be sent in time",
            axis="+".join(axes),
            has=plan.model.sizes["expert_ffn"],
            limit=critical_expert_ffn(plan.cluster, group, plan.model.sizes["experts"], plan.model.top_k),
            side="least",
        )


def _group_over(plan: Plan, axes: tuple[str, ...]) -> DeviceGroup | None:
    """Return the device group over `axes`; None if the group has one device."""
    group = device_group(plan.mesh, plan.cluster, axes)
    return group if group.size > 1 and group.levels else None
