"""The cost of one pipeline rank: transfers and compute in, exposed seconds out. Every step time is made of it.

`planc check` and `planc cost` come here with the transfers of rows (a plan's own, or those that a target makes of
them), `planc search` with transfers of propagation; the seconds are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planc.costing.step.overlap import WindowTotals, exposed_share
from planc.costing.step.section_cost import SectionSeconds
from planc.costing.step.shared_links import LinkSeconds, beside, summed
from planc.costing.step.transfers import STEP, StateTransfers, Transfer, TransferGroup, window_of
from planc.diag.fast_dataclass import dataclass
from planc.ir.collective import Per
from planc.ir.model import Section

Load = Mapping[Section, int]
"""Copies of each section, on a rank or a stage."""


class RankCost:
    """Seconds of one pipeline rank beside its compute: its transfers of state, as far as compute does not hide them."""

    def __init__(self, load: Load, times: int, contention: float) -> None:
        self.load, self.times, self.contention = load, times, contention
        self.exposed: dict[Section, list[float]] = {s: [0.0, 0.0] for s in load}
        """Exposed seconds of one copy of a section and one microbatch: forward, and all the rest."""
        self.after_s = 0.0
        """Exposed seconds once a step, beside the microbatches."""
        self.shares: dict[tuple[Per, bool], float] = {}
        """Share of its transfers that each overlap window exposes: per microbatch or step, forward or not."""

    def hide(
        self,
        per: Per,
        backward: bool,
        groups: Sequence[TransferGroup],
        cover_s: float,
        waits: LinkSeconds,
        more: TransferGroup | None = None,
    ) -> tuple[float, LinkSeconds]:
        """Add the exposed seconds of the transfers of one window; returns what is left to overlap with: compute time
        (s), and transfers of activations.

        Args:
            per: microbatch or step, the window's period.
            backward: true for the window of the backward and all after it.
            groups: transfers of state that share the window.
            cover_s: seconds of compute that may run beside them.
            waits: transfers of activations beside which they run where links are free.
            more: one group more, of gradients that ranks of the pipeline sum.
        """
        if more is not None:
            groups = (*groups, more)
        if not groups:
            return cover_s, waits
        load, totals, mine = self.load, WindowTotals(), []
        each = self.times if per == "microbatch" else 1
        for g in groups:
            n = each if g.section == STEP else each * load.get(g.section, 0)
            if n:
                mine.append((g, n))
                if not g.waits:
                    totals.add(g.phase, n * g.transfer_s, n * g.calls)
        hidden_s, waits = _hidden(mine, cover_s, waits)
        share, left_s = exposed_share(totals, cover_s + hidden_s, self.contention)
        self.shares[per, backward] = share
        for g, n in mine:
            one_s = g.launch_s + (g.transfer_s if g.waits else share * g.transfer_s)
            # Once, however many microbatches there are, or of no section: no other stage waits for it.
            if per == "step" or g.phase == "optimizer" or g.section == STEP:
                self.after_s += n * one_s
            else:
                self.exposed[g.section][backward] += one_s
        return left_s, waits

    def exposed_s(self, transfer: Transfer, waits: bool) -> float:
        """Exposed seconds a step of a `transfer` of state or of a scalar on this rank; nothing hides one that
        `waits`."""
        t = transfer
        n = t.calls * (1 if t.section == STEP else self.load[t.section]) * (self.times if t.per == "microbatch" else 1)
        hides = t.carries in ("param", "grad") and not waits
        share = self.shares[window_of(t, self.times), t.phase != "forward"] if hides else 1.0
        return n * (share * t.transfer_s + t.launch_s)


def _hidden(
    groups: Sequence[tuple[TransferGroup, int]], cover_s: float, waits: LinkSeconds
) -> tuple[float, LinkSeconds]:
    """Seconds of transfers of state, so many times each of `groups`, that run beside those of activations, on links
    that are free; and the part of the latter that is left."""
    if not waits.total_s:
        return 0.0, waits
    state = summed(g.links.times(n) for g, n in groups if not g.waits)
    after_s = state.total_s - cover_s
    if after_s <= 0:
        return 0.0, waits
    exposed_s, left = beside(state.times(after_s / state.total_s), waits)
    return after_s - exposed_s, left


def rank_cost(
    load: Load,
    replayed: Load,
    times: int,
    compute: Mapping[Section, SectionSeconds],
    transfers: StateTransfers,
    contention: float,
    shared: TransferGroup | None = None,
) -> RankCost:
    """Exposed seconds of a rank's transfers of state.

    Args:
        load: copies of each section on the rank.
        replayed: copies of each section there that the backward runs again.
        times: microbatches of a step that the rank runs on each of its stages.
        compute: seconds of one copy of each section for one microbatch.
        transfers: transfers of state of one copy of each section.
        contention: share by which a transfer slows the compute beside it.
        shared: gradients that are summed between ranks of the pipeline, where `transfers` does not hold them.
    """
    cost = RankCost(load, times, contention)
    cost.after_s = transfers.after_s
    often, once = transfers.per_microbatch, transfers.per_step
    forward_s = sum([n * (compute[s].time.forward_s - compute[s].hidden[0]) for s, n in load.items()])
    forward, again, backward = (
        summed(compute[s].waits[i].times(n * times) for s, n in held.items() if compute[s].waits[i].total_s)
        for i, held in enumerate((load, replayed, load))
    )
    left_s, waits = cost.hide("microbatch", False, often[0], forward_s * times, forward)
    cost.hide("step", False, once[0], left_s / times, waits.times(1 / times))
    backward_s = sum(
        [
            n * (compute[s].backward_compute_s - compute[s].hidden[2]) - replayed[s] * compute[s].hidden[1]
            for s, n in load.items()
        ]
    )
    left_s, waits = cost.hide("microbatch", True, often[1], max(0.0, backward_s) * times, summed((again, backward)))
    cost.hide("step", True, once[1], left_s / times, waits.times(1 / times), shared)
    return cost


@dataclass(slots=True)
class StageCost:
    """Seconds of one microbatch on one virtual stage: compute, recompute and exposed transfers, by direction."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    recompute_s: float = 0.0
    weight_s: float = 0.0
    exposed_forward_s: float = 0.0
    exposed_backward_s: float = 0.0


def stage_cost(sections: Load, compute: Mapping[Section, SectionSeconds], rank: RankCost, replayed: Load) -> StageCost:
    """Seconds of one microbatch on a virtual stage.

    Args:
        sections: copies of each section in the stage.
        compute: seconds of one copy of each section.
        rank: the cost of the rank that holds the stage; its exposed seconds go by copies.
        replayed: copies of each section on the rank that the backward runs again.
    """
    forward = backward = again = weight = exposed_forward = exposed_backward = 0.0
    for s, n in sections.items():
        one, (forward_s, rest_s) = compute[s], rank.exposed[s]
        time = one.time
        forward += n * time.forward_s
        backward += n * time.backward_s
        again += n * time.recompute_s
        weight += n * time.weight_s
        exposed_forward += n * (one.exposed_forward_s + forward_s)
        recompute_s = one.exposed_recompute_s * (replayed[s] / rank.load[s])
        exposed_backward += n * (one.exposed_backward_s + recompute_s + rest_s)
    return StageCost(forward, backward, again, weight, exposed_forward, exposed_backward)
