"""The cost of one pipeline rank: exposed seconds of its transfers of state, given its transfers and compute.

`planc check` and `planc cost` use the transfers of report rows (the plan's or a target's), `planc search` those of
propagation. The seconds are the same.
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
"""Number of copies of each section on a rank or a stage."""


class RankCost:
    """Exposed seconds of one pipeline rank's transfers of state."""

    def __init__(self, load: Load, times: int, contention: float) -> None:
        self.load, self.times, self.contention = load, times, contention
        self.exposed: dict[Section, list[float]] = {s: [0.0, 0.0] for s in load}
        """Exposed seconds of one copy of a section for one microbatch: forward, and everything else."""
        self.after_s = 0.0
        """Exposed seconds once a step, outside the microbatches."""
        self.shares: dict[tuple[Per, bool], float] = {}
        """Exposed share of the transfers of each overlap window: per microbatch or step, forward or not."""

    def hide(
        self,
        per: Per,
        backward: bool,
        groups: Sequence[TransferGroup],
        cover_s: float,
        waits: LinkSeconds,
        more: TransferGroup | None = None,
    ) -> tuple[float, LinkSeconds]:
        """Add the exposed seconds of one window's transfers. Return the compute (s) and the activation transfers that
        remain to overlap with.

        Args:
            per: microbatch or step, the window's period.
            backward: true for the window of the backward and everything after it.
            groups: transfers of state that share the window.
            cover_s: seconds of compute that can overlap with them.
            waits: exposed activation transfers, beside which state transfers use free links.
            more: an additional group: gradients that pipeline ranks sum.
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
        """Return the exposed seconds per step of a `transfer` of state or of a scalar on this rank. A transfer that
        `waits` is fully exposed."""
        t = transfer
        n = t.calls * (1 if t.section == STEP else self.load[t.section]) * (self.times if t.per == "microbatch" else 1)
        hides = t.carries in ("param", "grad") and not waits
        share = self.shares[window_of(t, self.times), t.phase != "forward"] if hides else 1.0
        return n * (share * t.transfer_s + t.launch_s)


def _hidden(
    groups: Sequence[tuple[TransferGroup, int]], cover_s: float, waits: LinkSeconds
) -> tuple[float, LinkSeconds]:
    """Return the seconds of state transfers hidden beside activation transfers on free links, and the activation
    transfers that remain. Each of `groups` has its number of repetitions."""
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
    """Return the exposed seconds of a rank's transfers of state.

    Args:
        load: copies of each section on the rank.
        replayed: copies of each section on the rank that the backward recomputes.
        times: microbatches per step that the rank runs on each of its stages.
        compute: seconds of one copy of each section for one microbatch.
        transfers: transfers of state of one copy of each section.
        contention: share by which a transfer slows overlapped compute.
        shared: gradients that pipeline ranks sum, if they are not part of `transfers`.
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
