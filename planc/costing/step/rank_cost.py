"""The cost of one pipeline rank: exposed seconds of its transfers of state (parameters, gradients, moments).

`planc check` and `planc cost` take transfers from the report's rows (predicted collectives), `planc search` from
sharding propagation. The seconds are the same. A section is the embedding, a kind of layer, or the head.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from planc.costing.step.overlap import WindowTotals, exposed_share
from planc.costing.step.section_cost import SectionSeconds
from planc.costing.step.shared_links import LinkSeconds, beside, summed
from planc.costing.step.transfers import STEP, StateTransfers, Transfer, TransferGroup, window_of
from planc.diag.fast_dataclass import dataclass
from planc.ir.collective import Per
from planc.ir.model import Section
from planc.sharding.stage_assignment import StageKind, StageKinds

Load = Mapping[Section, int]
"""Number of copies of each section on a rank or a stage."""


class Window(NamedTuple):
    """Compute that can hide transfers of state: the forward or backward of one stage, or of all stages of a rank."""

    kind: StageKind
    stages: int
    """Number of equal stages on the rank."""
    copies: Mapping[Section, float]
    """Copies of each section in one of them; of `step`, its part of the rank's transfers that belong to no section."""
    cover_s: float
    """Compute of one of them."""
    again_s: float
    """Part of that compute which the backward runs again."""
    waits: LinkSeconds
    """Exposed activation transfers of one of them, beside which transfers of state use free links."""


class Hiding(NamedTuple):
    """Transfers of state that share compute, and what of them it hides (s)."""

    total_s: float = 0.0
    """All of the transfers."""
    ends_s: float = 0.0
    """The first call of the forward, the last of the backward: no compute runs beside them."""
    cover_s: float = 0.0
    """The compute."""


class RankCost:
    """Exposed seconds of one pipeline rank's transfers of state (parameters, gradients, moments)."""

    def __init__(self, load: Load, stages: StageKinds, times: int, contention: float) -> None:
        self.load, self.times, self.contention = load, times, contention
        self.exposed: dict[StageKind, dict[Section, list[float]]] = {
            kind: {s: [0.0, 0.0, 0.0] for s, _ in kind} for kind in stages
        }
        """Exposed seconds of one copy of a section for one microbatch, by stage: forward, and everything else;
        and those that only compute that runs again hides."""
        self.after_s = 0.0
        """Exposed seconds once a step, outside the microbatches."""
        self.late_s = 0.0
        """Those of them that more compute would hide."""
        self.shares: dict[tuple[Per, bool, Section], float] = {}
        """Exposed share of a section's transfers: per microbatch or step, forward or not."""
        self.hiding: dict[tuple[Per, bool, Section], Hiding] = {}
        """How the share comes about."""

    def hide(
        self, per: Per, backward: bool, groups: Sequence[TransferGroup], windows: Sequence[Window]
    ) -> Sequence[Window]:
        """Add the exposed seconds of the transfers `groups`. Return the `windows` with the compute left for others.

        Transfers that run for each microbatch overlap only with compute of their own stage.

        Args:
            per: `microbatch` if the transfers run for each microbatch, `step` if they run once a step.
            backward: True for the backward and everything after it, False for the forward.
            groups: transfers of state that share the windows.
            windows: the compute that the transfers can overlap with.
        """
        if not groups:
            return windows
        each, totals, left = self.times if per == "microbatch" else 1, WindowTotals(), []
        whole: Mapping[Section, float] = {**self.load, STEP: 1}
        for g in groups:
            n = each * whole.get(g.section, 0)
            if n and not g.waits:
                totals.add(g.phase, n * g.transfer_s, n * g.calls)
        for window in windows:
            mine = [(g, each * window.copies[g.section]) for g in groups if g.section in window.copies]
            hidden_s, waits = _hidden(mine, window.cover_s, window.waits)
            total_s = sum([n * g.transfer_s for g, n in mine if not g.waits])
            min_s, cover_s = totals.min_s(total_s), window.cover_s + hidden_s
            share, left_s = exposed_share(total_s, min_s, cover_s, self.contention)
            without, _ = exposed_share(total_s, min_s, cover_s - window.again_s, self.contention)
            if per == "step":
                self.late_s += (1 - self.contention) * max(0.0, total_s - min_s - cover_s)
            for section in {g.section for g, _ in mine}:
                key, part = (per, backward, section), window.stages * window.copies[section] / whole[section]
                self.shares[key] = self.shares.get(key, 0.0) + part * share
                sums = zip(self.hiding.get(key, Hiding()), (total_s, min_s, cover_s), strict=True)
                self.hiding[key] = Hiding(*(before + window.stages * s for before, s in sums))
            for g, n in mine:
                one_s = g.launch_s + (g.transfer_s if g.waits else share * g.transfer_s)
                # Once, however many microbatches there are, or of no section: no other stage waits for it.
                if per == "step" or g.phase == "optimizer" or g.section == STEP:
                    self.after_s += window.stages * n * one_s
                else:
                    self.exposed[window.kind][g.section][backward] += one_s
                    self.exposed[window.kind][g.section][2] += 0.0 if g.waits else (without - share) * g.transfer_s
            left.append(window._replace(cover_s=left_s, waits=waits))
        return left

    def exposed_s(self, transfer: Transfer, waits: bool) -> float:
        """Return the exposed seconds per step of a `transfer` of state or of a scalar: all of them if it `waits`."""
        t = transfer
        n = t.calls * (1 if t.section == STEP else self.load[t.section]) * (self.times if t.per == "microbatch" else 1)
        hides = t.carries in ("param", "grad") and not waits
        share = self.shares[window_of(t, self.times), t.phase != "forward", t.section] if hides else 1.0
        return n * (share * t.transfer_s + t.launch_s)


def _hidden(
    groups: Sequence[tuple[TransferGroup, float]], cover_s: float, waits: LinkSeconds
) -> tuple[float, LinkSeconds]:
    """Return the seconds of state transfers that run beside exposed activation transfers (`waits`), and those
    activation transfers beside which none run. `groups` are state transfers with their number of calls, the first
    `cover_s` seconds of which compute hides."""
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
    stages: StageKinds,
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
        stages: the rank's virtual stages.
        times: microbatches per step that the rank runs on each of its stages.
        compute: seconds of one copy of each section for one microbatch.
        transfers: transfers of state of one copy of each section.
        contention: share by which a transfer slows overlapped compute.
        shared: gradients that several pipeline ranks sum; None if there are none, or if they are in `transfers`.
    """
    cost = RankCost(load, stages, times, contention)
    cost.after_s = transfers.after_s
    often, once = transfers.per_microbatch, transfers.per_step
    again = {s: replayed[s] / n for s, n in load.items()}
    forward_s = {s: compute[s].time.forward_s - compute[s].hidden[0] for s in load}
    backward_s = {
        s: compute[s].backward_compute_s - compute[s].hidden[2] - again[s] * compute[s].hidden[1] for s in load
    }
    waits = {s: compute[s].waits[0] for s in load}
    late = {s: summed((compute[s].waits[1].times(again[s]), compute[s].waits[2])) for s in load}
    left = cost.hide("microbatch", False, often[0], _of_stages(stages, times, forward_s, {}, waits))
    cost.hide("step", False, once[0], _of_one_microbatch(load, left, times))
    again_s = {s: again[s] * (compute[s].time.recompute_s - compute[s].hidden[1]) for s in load}
    left = cost.hide("microbatch", True, often[1], _of_stages(stages, times, backward_s, again_s, late))
    cost.hide("step", True, once[1] if shared is None else (*once[1], shared), _of_one_microbatch(load, left, times))
    return cost


def _of_stages(
    stages: StageKinds,
    times: int,
    cover_s: Mapping[Section, float],
    again_s: Mapping[Section, float],
    waits: Mapping[Section, LinkSeconds],
) -> list[Window]:
    """Return one window for each kind of stage: the forward or backward of all microbatches. `cover_s`
    (compute), `again_s` (its part that runs again) and `waits` (exposed activation transfers) are for one copy of a
    section and one microbatch."""
    total = sum(stages.values())
    return [
        Window(
            kind,
            n,
            {**dict(kind), STEP: 1 / total},
            max(0.0, sum([c * cover_s[s] for s, c in kind])) * times,
            sum([c * again_s.get(s, 0.0) for s, c in kind]) * times,
            summed(waits[s].times(c * times) for s, c in kind if waits[s].total_s),
        )
        for kind, n in stages.items()
    ]


def _of_one_microbatch(load: Load, left: Iterable[Window], times: int) -> list[Window]:
    """Return one window: the compute of one microbatch on all stages of the rank. `left` are the windows of all
    microbatches, with the compute that hides no per-microbatch transfers."""
    cover_s = sum([w.stages * w.cover_s for w in left])
    waits = summed(w.waits.times(w.stages / times) for w in left if w.waits.total_s)
    return [Window((), 1, {**load, STEP: 1}, cover_s / times, 0.0, waits)]


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
    """Return the seconds of one microbatch on a virtual stage.

    Args:
        sections: copies of each section in the stage.
        compute: seconds of one copy of each section.
        rank: the cost of the rank that holds the stage.
        replayed: copies of each section on the rank that the backward runs again.
    """
    forward = backward = again = weight = exposed_forward = exposed_backward = 0.0
    state = rank.exposed[tuple(sections.items())]
    for s, n in sections.items():
        one, (forward_s, rest_s, hidden_s) = compute[s], state[s]
        time = one.time
        forward += n * time.forward_s
        backward += n * time.backward_s
        again += n * time.recompute_s
        # Gradients are reduced after the wgrad: the stage before does not wait for them, only this rank does. What a
        # replay hides of them shortens the replay, not each wgrad: the last ones run without one.
        weight += n * (time.weight_s + rest_s + hidden_s)
        exposed_forward += n * (one.exposed_forward_s + forward_s)
        recompute_s = one.exposed_recompute_s * (replayed[s] / rank.load[s])
        exposed_backward += n * (one.exposed_backward_s + recompute_s + rest_s)
    return StageCost(forward, backward, again, weight, exposed_forward, exposed_backward)
