"""Transfers: collectives with their seconds, from which step times are computed.

A transfer represents the calls of one collective by one copy of a section (embedding, layer or head), in each
microbatch or once a step. `transfers_of_rows` creates transfers from a report's rows: the predicted collectives of a
plan or of a target's program. `transfers_of_calls` creates them from sharding propagation, for a search, which costs
thousands of layouts without rows. Both return the same transfers for the same plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from planc.costing.machine.collective_time import transfer_s
from planc.costing.machine.group import device_group
from planc.costing.machine.topology import DeviceGroup
from planc.costing.step.shared_links import NOTHING, LinkSeconds, summed
from planc.diag.fast_dataclass import dataclass
from planc.ir.cache import Cache, cached_on
from planc.ir.collective import DTYPE_BYTES, Carries, Collective, CollectiveOp, Per, Phase
from planc.ir.model import Section
from planc.ir.plan import Plan
from planc.ir.sharding import Sharded
from planc.sharding.calls import Call
from planc.sharding.stage_assignment import microbatches_each
from planc.sharding.state_collectives import scalars, state

STEP = "step"
"""The section of transfers that belong to no section of the model: scalars, sums between pipeline ranks, stage
boundaries."""


class LinkTimes:
    """Caches device groups and the seconds of transfers over them. All layouts of one cluster share them.

    If `disjoint` is True, transfers of state and of activations are costed as if they shared no link.
    """

    def __init__(self, *, disjoint: bool = False) -> None:
        self.cache = Cache()
        self._disjoint = disjoint

    @cached_on(lambda links, plan, axes: (links.cache, (axes, plan.mesh.named_sizes)))
    def group(self, plan: Plan, axes: tuple[str, ...]) -> DeviceGroup:
        """Return the device group over these `axes` of `plan`'s mesh."""
        return device_group(plan.mesh, plan.cluster, axes)

    def call_s(self, plan: Plan, op: CollectiveOp, buffer_bytes: float, axes: tuple[str, ...]) -> tuple[float, float]:
        """Return the (transfer, launch) seconds of one call with `buffer_bytes`, the larger of input and output."""
        group = self.group(plan, axes)
        return self._transfer_s(op, buffer_bytes, group), group.call_s

    def links_of(self, plan: Plan, op: CollectiveOp, buffer_bytes: float, axes: tuple[str, ...]) -> LinkSeconds:
        """Return the seconds of one call of `op` over `axes` of `plan` with a buffer of `buffer_bytes`, and the seconds
        of the links that it uses. The result is empty for machines that are not described as graphs."""
        if plan.cluster.own_graph is None:
            return NOTHING
        return self._links(op, buffer_bytes, self.group(plan, axes))

    @cached_on(lambda links, op, buffer_bytes, group: (links.cache, (op, buffer_bytes, id(group))))
    def _links(self, op: CollectiveOp, buffer_bytes: float, group: DeviceGroup) -> LinkSeconds:
        from planc.costing.routes.algorithms import Routes

        total_s = self._transfer_s(op, buffer_bytes, group)
        if self._disjoint or not isinstance(group.routes, Routes):
            return LinkSeconds(total_s)
        found = group.routes.sending(op, buffer_bytes)
        if found is None:
            return LinkSeconds(total_s)
        loads, sent_s = found
        return LinkSeconds(total_s, ((loads, sent_s / group.efficiency(op)),))

    @cached_on(lambda links, op, buffer_bytes, group: (links.cache, (op, buffer_bytes, id(group))))
    def _transfer_s(self, op: CollectiveOp, buffer_bytes: float, group: DeviceGroup) -> float:
        return transfer_s(op, buffer_bytes, group)


class Transfer(NamedTuple):
    """Calls of one collective by one copy of a section (embedding, layer or head)."""

    section: Section
    """`step` for transfers that run once on a rank, regardless of its sections."""
    phase: Phase
    carries: Carries
    per: Per
    op: CollectiveOp
    axes: tuple[str, ...]
    calls: float
    """Calls per microbatch (`per` microbatch) or per step. It is a fraction if a target issues fewer calls than
    copies."""
    transfer_s: float
    """Seconds of one call on the links."""
    launch_s: float
    """Seconds of one call on the host, which never overlap with compute."""
    links: LinkSeconds = NOTHING
    """Seconds of one call on each link."""


def transfers_of_rows(
    plan: Plan,
    rows: Sequence[Collective],
    load: Mapping[Section, int],
    replayed: Mapping[Section, int],
    links: LinkTimes,
) -> list[Transfer]:
    """Return the transfers for the collectives (`rows`) of one pipeline rank, in the same order.

    Args:
        rows: all collectives of one rank; counts are per device and optimizer step.
        load: copies of each section on the rank.
        replayed: copies of each section on the rank that the backward recomputes.
        links: seconds of calls, shared between ranks.

    If a target runs a section on a rank that does not hold it (XLA: embedding, head), its transfers have section
    `step`.
    """
    each, found = microbatches_each(plan), []
    for r in rows:
        section = r.section if r.section in load else STEP
        copies = (replayed if r.phase == "recompute" else load).get(section, 1)
        calls = r.count / (copies * each if r.per == "microbatch" else copies)
        found.append(
            Transfer(
                section,
                r.phase,
                r.carries,
                r.per,
                r.op,
                r.axes,
                calls,
                *links.call_s(plan, r.op, r.buffer_bytes, r.axes),
                links.links_of(plan, r.op, r.buffer_bytes, r.axes),
            )
        )
    return found


def transfers_of_calls(sharded: Sharded, section: Section, calls: Iterable[Call], links: LinkTimes) -> list[Transfer]:
    """Return the transfers of a copy of `section` of `sharded`, from sharding propagation (`calls`), timed by `links`.

    A group of one device transfers nothing.
    """
    plan, found = sharded.plan, []
    for c in calls:
        axes = plan.mesh.in_order(c.axes)
        if plan.mesh.size(*axes) > 1:
            call = plan, c.op, c.elements * DTYPE_BYTES[c.dtype], axes
            seconds, on_links = links.call_s(*call), links.links_of(*call)
            found.append(Transfer(section, c.phase, c.carries, c.per, c.op, axes, c.times, *seconds, on_links))
    return found


@dataclass(frozen=True, slots=True)
class TransferGroup:
    """The sum of the parameter and gradient collectives of a copy of a section that the same compute can hide."""

    section: Section
    phase: Phase
    waits: bool
    """True if an `overlap AXIS as none` sentence forbids overlap."""
    transfer_s: float
    launch_s: float
    calls: float
    """Calls of the most frequent collective."""
    links: LinkSeconds = NOTHING
    """Seconds on each link."""


Directions = tuple[tuple[TransferGroup, ...], tuple[TransferGroup, ...]]
"""Groups of the forward, and of everything else: backward, recompute and optimizer."""


@dataclass(frozen=True, slots=True)
class StateTransfers:
    """The parameter and gradient transfers of a pipeline rank, in groups: of each microbatch, and once a step."""

    per_microbatch: Directions
    per_step: Directions
    after_s: float
    """Exposed seconds per step that belong to no stage: scalars, and sections that a target runs on all ranks."""


def state_transfers(plan: Plan, transfers: Iterable[Transfer]) -> StateTransfers:
    """Return the sums of those `transfers` that carry parameters, gradients and scalars of `plan`, not activations."""
    waiting, each = axes_that_wait(plan), microbatches_each(plan)
    sums: dict[tuple[Per, Section, Phase, bool], tuple[float, float, float]] = {}
    shared: dict[tuple[Per, Section, Phase, bool], list[LinkSeconds]] = {}
    after_s = 0.0
    for t in transfers:
        if t.carries == "scalar" or (t.carries == "activation" and t.section == STEP and t.op != "send_recv"):
            after_s += t.calls * (each if t.per == "microbatch" else 1) * (t.transfer_s + t.launch_s)
        elif t.carries != "activation":
            waits = t.carries == "update" or not waiting.isdisjoint(t.axes)
            key = window_of(t, each), t.section, t.phase, waits
            sum_s, launch_s, calls = sums.get(key, (0.0, 0.0, 0.0))
            sums[key] = sum_s + t.calls * t.transfer_s, launch_s + t.calls * t.launch_s, max(calls, t.calls)
            if t.links.total_s:
                shared.setdefault(key, []).append(t.links.times(t.calls))

    def directions(per: Per) -> Directions:
        groups = [TransferGroup(*key[1:], *s, summed(shared.get(key, ()))) for key, s in sums.items() if key[0] == per]
        return (
            tuple(g for g in groups if g.phase == "forward"),
            tuple(g for g in groups if g.phase != "forward"),
        )

    return StateTransfers(directions("microbatch"), directions("step"), after_s)


def window_of(transfer: Transfer, times: int) -> Per:
    """Return `microbatch` if a state `transfer` runs for every microbatch, `step` if it runs once a step.

    If the rank runs only one microbatch (`times`), the same compute hides both, so the result is `step`.
    """
    return transfer.per if times > 1 else "step"


def state_transfers_of(sharded: Sharded, links: LinkTimes, *, fewest: bool = False) -> StateTransfers:
    """Return the transfers of parameters, gradients and scalars of `sharded`, from sharding propagation, timed by
    `links`. With `fewest`, only those that every program needs count (`_fewest`), without the host's time."""
    calls = {section: list(state(sharded, section)) for section in sharded.ops}
    if fewest:
        calls = _fewest(calls)
    found = [t for section, every in calls.items() for t in transfers_of_calls(sharded, section, every, links)]
    found = [t._replace(launch_s=0.0) for t in found] if fewest else found
    return state_transfers(sharded.plan, [*found, *transfers_of_calls(sharded, STEP, scalars(sharded), links)])


def _fewest(calls: Mapping[Section, Iterable[Call]]) -> dict[Section, list[Call]]:
    """Return the fewest `calls` that any program needs for one copy of each section: once a step, a gather before the
    first forward and a reduction after the backward. Calls with the same operation and axes count as one."""
    gathered: set[str] = set()
    fewest = {}
    for section, every in calls.items():
        found: dict[object, Call] = {}
        for c in every:
            if c.carries == "param" and (c.phase != "forward" or c.tensor in gathered):
                continue  # it may have stayed
            key = c.op, c.axes, c.carries, c.dtype
            more = found[key].elements if key in found else 0.0
            phase: Phase = "backward" if c.carries == "grad" else c.phase
            found[key] = replace(c, phase=phase, per="step", elements=c.elements + more)
        gathered |= {c.tensor for c in every if c.carries == "param"}
        fewest[section] = [*found.values()]
    return fewest


def axes_that_wait(plan: Plan) -> set[str]:
    """Return the axes of `plan` for which an `overlap AXIS as none` sentence forbids that transfers of state overlap.

    >>> axes_that_wait(plan)
    set()
    """
    return {o.axis for o in plan.overlaps if o.method == "none"}


def between_stages(row: Collective) -> bool:
    """True if `row` is a pipeline's send between stages, whose time is part of the simulated schedule."""
    return row.op == "send_recv" and row.section == STEP
