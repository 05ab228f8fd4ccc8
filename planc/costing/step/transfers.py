"""Transfers: collectives with their seconds, as every step time is made of them.

A transfer stands for the calls of one collective by one copy of a section, in each microbatch or once a step. It is
made of a report's row (`transfers_of_rows`, for a plan's semantic collectives or for those that a target makes of
them) or of a call of propagation (`transfers_of_calls`, for a search, which costs thousands of layouts and shows no
rows). Both give the same transfers for the same plan, and `planc.costing.step.rank_cost` makes seconds of either.
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
"""The section of what belongs to no part of the model: scalars, sums between pipeline ranks, stage boundaries."""


class LinkTimes:
    """Device groups and seconds of transfers over them, cached for all layouts of one cluster.

    With `disjoint` transfers of state and of activations are costed as if they had no link in common.
    """

    def __init__(self, *, disjoint: bool = False) -> None:
        self.cache = Cache()
        self._disjoint = disjoint

    @cached_on(lambda links, plan, axes: (links.cache, (axes, plan.mesh.named_sizes)))
    def group(self, plan: Plan, axes: tuple[str, ...]) -> DeviceGroup:
        """The group over these `axes` of `plan`'s mesh. It depends on the mesh alone, not on what is stored
        where."""
        return device_group(plan.mesh, plan.cluster, axes)

    def call_s(self, plan: Plan, op: CollectiveOp, buffer_bytes: float, axes: tuple[str, ...]) -> tuple[float, float]:
        """Seconds of one call: (transfer, launch). `buffer_bytes` is the larger of input and output on one device."""
        group = self.group(plan, axes)
        return self._transfer_s(op, buffer_bytes, group), group.call_s

    def links_of(self, plan: Plan, op: CollectiveOp, buffer_bytes: float, axes: tuple[str, ...]) -> LinkSeconds:
        """Seconds of one call of `op` over `axes` of `plan` with a buffer of `buffer_bytes`, and those of the links
        that it uses; nothing on machines that are not written as graphs."""
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
    """Calls of one collective by one copy of a section."""

    section: Section
    """`step` for what is done once on a rank, whatever sections it holds."""
    phase: Phase
    carries: Carries
    per: Per
    op: CollectiveOp
    axes: tuple[str, ...]
    calls: float
    """Calls in each microbatch (`per` microbatch) or in each step. A target may issue fewer calls than copies: a
    fraction."""
    transfer_s: float
    """Seconds of one call on the links."""
    launch_s: float
    """Seconds of one call on the host. They are never overlapped."""
    links: LinkSeconds = NOTHING
    """Seconds of one call on each link."""


def transfers_of_rows(
    plan: Plan,
    rows: Sequence[Collective],
    load: Mapping[Section, int],
    replayed: Mapping[Section, int],
    links: LinkTimes,
) -> list[Transfer]:
    """Transfers of one pipeline rank's rows, in the order of the rows.

    Args:
        rows: all rows of one rank; counts are per device and optimizer step.
        load: copies of each section on the rank.
        replayed: copies of each section there that the backward runs again.
        links: seconds of calls, shared between ranks.

    A target may run a section on ranks that do not hold it (XLA runs embedding and head on all): its transfers
    belong to the step there.
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
    """Transfers of one copy of a `section` of `sharded`, from the `calls` of propagation; `links` has their seconds.

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
    """State collectives of one copy of a section that share one overlap window, summed."""

    section: Section
    phase: Phase
    waits: bool
    """An `overlap AXIS as none` sentence lets nothing hide them."""
    transfer_s: float
    launch_s: float
    calls: float
    """Calls of the most frequent one."""
    links: LinkSeconds = NOTHING
    """Seconds on each link."""


Directions = tuple[tuple[TransferGroup, ...], tuple[TransferGroup, ...]]
"""Groups of the forward, and of all the rest: backward, recompute and optimizer."""


@dataclass(frozen=True, slots=True)
class StateTransfers:
    """A rank's transfers of state, in groups: those of each microbatch, and those of each step."""

    per_microbatch: Directions
    per_step: Directions
    after_s: float
    """Seconds a step of what nothing hides and no stage holds: scalars, and sections that a target runs everywhere."""


def state_transfers(plan: Plan, transfers: Iterable[Transfer]) -> StateTransfers:
    """Sums of those `transfers` that move parameters, gradients and scalars of `plan`; those of a stage's activations
    are left out."""
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
    """Overlap window of a transfer of state on a rank that runs `times` microbatches.

    With one microbatch, its transfers and those once a step run beside the same compute.
    """
    return transfer.per if times > 1 else "step"


def state_transfers_of(sharded: Sharded, links: LinkTimes, *, fewest: bool = False) -> StateTransfers:
    """State transfers of every section of `sharded`, and of its scalars, without rows; `links` has the seconds of
    calls. With `fewest` those that any program needs (`_fewest`), in calls that take the host no time."""
    calls = {section: list(state(sharded, section)) for section in sharded.ops}
    if fewest:
        calls = _fewest(calls)
    found = [t for section, every in calls.items() for t in transfers_of_calls(sharded, section, every, links)]
    found = [t._replace(launch_s=0.0) for t in found] if fewest else found
    return state_transfers(sharded.plan, [*found, *transfers_of_calls(sharded, STEP, scalars(sharded), links)])


def _fewest(calls: Mapping[Section, Iterable[Call]]) -> dict[Section, list[Call]]:
    """The `calls` that a program makes at least for one copy of each section: of a parameter before the first forward
    that uses it, of a gradient after its backward, all of a section that go the same way as one, once a step."""
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
    """Axes of `plan` whose transfers of state nothing may hide: those of `overlap AXIS as none`.

    >>> axes_that_wait(plan)
    set()
    """
    return {o.axis for o in plan.overlaps if o.method == "none"}


def between_stages(row: Collective) -> bool:
    """True if `row` is a pipeline's send between stages, whose time is part of the simulated schedule."""
    return row.op == "send_recv" and row.section == STEP
