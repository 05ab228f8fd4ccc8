"""Seconds of transfers, and what of them nothing hides.

Collectives of activations wait for their data and are exposed whole. Gathers of
parameters hide behind the compute of the pass that they serve, reductions of gradients behind the
backward, after what is gathered for it; what does not fit there is exposed. Once-a-step transfers hide
behind one microbatch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress

from planc.cost.compute.gemm import weights_s
from planc.cost.compute.section import SectionTime, op_s
from planc.cost.machine.collective_time import bare_s
from planc.cost.machine.topology import Span
from planc.ir.collective import Collective, CollectiveOp
from planc.ir.model import Section
from planc.ir.sharding import Sharded
from planc.sharding.activation_collectives import PHASES, ActivationPhase
from planc.sharding.stage_assignment import microbatches_each, sections_on


def seconds_of(rows: Iterable[Collective], spans: dict[tuple[str, ...], Span]) -> dict[int, float]:
    """Seconds of each row, all its calls, without the framework's time around them. Stages repeat each other: like
    calls are timed once."""
    known: dict[tuple[CollectiveOp, float, tuple[str, ...]], float] = {}
    seconds = {}
    for r in rows:
        key = (r.op, r.buffer_bytes, r.axes)
        one = known.get(key)
        if one is None:
            one = known[key] = bare_s(*key[:2], spans[r.axes])
        seconds[id(r)] = r.count * one
    return seconds


def asked_s(row: Collective, spans: dict[tuple[str, ...], Span]) -> float:
    """Seconds that the framework takes to ask for a row's calls: the host's, which nothing hides."""
    return row.count * spans[row.axes].call_s


def exposed_of(
    sharded: Sharded,
    rows: tuple[Collective, ...],
    seconds: dict[int, float],
    sections: dict[Section, SectionTime],
) -> dict[int, float]:
    """Seconds of each row that nothing hides, over the whole step of its stage."""
    plan = sharded.plan
    exposed = {id(r): 0.0 if between_stages(r) else seconds[id(r)] for r in rows}
    seen: dict[tuple[object, ...], list[Collective]] = {}
    for stage, here in by_stage(rows).items():
        alike = (*sections_on(plan, stage).items(), *((r.op, r.tensor, r.axes, r.phase, r.count) for r in here))
        first = seen.setdefault(alike, here)
        if first is here:
            _expose(sharded, stage, here, seconds, sections, exposed)
        else:
            exposed.update((id(r), exposed[id(known)]) for r, known in zip(here, first, strict=True))
    return exposed


def by_stage(rows: Iterable[Collective]) -> dict[int, list[Collective]]:
    """Rows of each pipeline rank, in their order."""
    found: dict[int, list[Collective]] = {}
    for r in rows:
        found.setdefault(r.stage, []).append(r)
    return found


def _expose(
    sharded: Sharded,
    stage: int,
    here: list[Collective],
    seconds: dict[int, float],
    sections: dict[Section, SectionTime],
    exposed: dict[int, float],
) -> None:
    """One pipeline rank's rows: what each hides behind."""
    plan = sharded.plan
    held, times = sections_on(plan, stage), microbatches_each(plan)
    forward, backward = _compute(sharded, stage, sections)
    waits = {o.axis for o in plan.overlaps if o.method == "none"}
    contention = plan.cluster.chip.contention
    state = [r for r in here if r.carries in ("param", "grad") and not waits.intersection(r.axes)]
    for phases, cover in ((("forward",), forward), (("backward", "optimizer"), backward)):
        group = [r for r in state if r.phase in phases]
        often = [r.section != "step" and r.count > held.get(r.section, 1) for r in group]
        left_s = _hide(list(compress(group, often)), cover * times, seconds, exposed, contention)
        once = [r for r, each in zip(group, often, strict=True) if not each]
        _hide(once, left_s / times, seconds, exposed, contention)
    for section, copies in held.items():
        mine = [r for r in here if r.section == section and r.carries == "activation"]
        if section in sharded.ops:
            for phase in PHASES:
                now = [r for r in mine if r.phase == phase]
                moving = [(r.op, r.axes, seconds[id(r)]) for r in now]
                bare = beside(sharded, section, phase, copies * times, moving)
                exposed.update(zip(map(id, now), bare, strict=True))


Moving = tuple[CollectiveOp, tuple[str, ...], float]
"""A transfer of activations: what it is, over which axes, and its seconds."""


def beside(
    sharded: Sharded, section: Section, phase: ActivationPhase, times: int, moving: Sequence[Moving]
) -> list[float]:
    """Exposed seconds of transfers of activations, which happen so many times as the section's ops are run.

    Most are waited for. Some run beside compute: rings beside attention, and what an `overlap` sentence names.
    `dual_batch` runs one microbatch's transfers beside another's compute, `weight_gradients` the sums of inputs'
    gradients beside the products that make the weights'; other methods beside the matmuls that make or take what
    is moved.
    """
    exposed = [s for _, _, s in moving]
    plan = sharded.plan
    if not (plan.overlaps or any(op == "send_recv" for op, _, _ in moving)):
        return exposed
    ops, chip = sharded.ops[section], plan.cluster.chip

    def cover(*kinds: str) -> float:
        chosen = [o for o in ops if o.op.kind in kinds or not kinds]
        return times * sum(op_s(sharded, o, chip, backward=phase == "backward") for o in chosen)

    rings = [i for i, (op, _, _) in enumerate(moving) if op == "send_recv"]
    groups = [(rings, cover("attention"), chip.contention)]
    for overlap in (o for o in plan.overlaps if o.method != "none"):
        over = [i for i, (op, axes, _) in enumerate(moving) if overlap.axis in axes and op != "send_recv"]
        if overlap.method == "weight_gradients":
            sums = [i for i in over if phase == "backward" and moving[i][0] in ("all_reduce", "reduce_scatter")]
            products = times * sum(weights_s(sharded, o, chip) for o in ops if o.op.kind == "matmul")
            groups.append((sums, products, chip.contention))
        elif overlap.method == "dual_batch":
            groups.append((over, cover(), DUAL_BATCH_CORES / chip.cores if chip.cores else chip.contention))
        else:
            groups.append((over, cover("matmul"), chip.contention))
    for group, covered, contention in groups:
        total = sum(moving[i][2] for i in group)
        share = _bare_share(max(0.0, 1 - covered / total), contention) if total else 0.0
        for i in group:
            exposed[i] = moving[i][2] * share
    return exposed


DUAL_BATCH_CORES = 20
"""Cores that two microbatches' transfers keep from compute (DeepSeek-V3 report, section 3.2.2)."""


def between_stages(row: Collective) -> bool:
    """A pipeline's hand-over; its time is part of the simulated schedule."""
    return row.op == "send_recv" and row.section == "step"


def _compute(sharded: Sharded, stage: int, sections: dict[Section, SectionTime]) -> tuple[float, float]:
    """Seconds of compute of one microbatch on a pipeline rank, forward and backward."""
    held = {s: n for s, n in sections_on(sharded.plan, stage).items() if s != "step"}
    times = [(sections[s], n) for s, n in held.items() if s in sections]
    forward = sum(t.forward_s * n for t, n in times)
    return forward, sum((t.backward_s + t.recompute_s) * n for t, n in times)


class Transfers(dict[str, tuple[float, int]]):
    """Of transfers that hide together, by phase: seconds of all calls, and how many there are of the commonest."""

    def add(self, phase: str, seconds: float, calls: int) -> None:
        """One more."""
        sum_s, most = self.get(phase, (0.0, 0))
        self[phase] = sum_s + seconds, max(most, calls)


def _hide(
    group: list[Collective],
    cover_s: float,
    seconds: dict[int, float],
    exposed: dict[int, float],
    contention: float,
) -> float:
    """What of these rows is exposed; returns what they leave of the cover."""
    transfers = Transfers()
    for r in group:
        transfers.add(r.phase, seconds[id(r)], r.count)
    share, left_s = hide(transfers, cover_s, contention)
    for r in group:
        exposed[id(r)] = seconds[id(r)] * share
    return left_s


def hide(transfers: Transfers, cover_s: float, contention: float) -> tuple[float, float]:
    """The share of each transfer that is exposed, and what they leave of the cover.

    Transfers share the cover, one after the other on the same links. The rest is exposed, and always one call
    of each phase: the first gather has no compute before it, the last reduction none after. Of what hides,
    compute is slowed down by the share `contention`.
    """
    total = sum(sum_s for sum_s, _ in transfers.values())
    if total <= 0:
        return 1.0, cover_s
    least = sum(sum_s / calls for sum_s, calls in transfers.values())
    bare = max(total - cover_s, least)
    return _bare_share(bare / total, contention), max(0.0, cover_s - total)


def _bare_share(share: float, contention: float) -> float:
    """The exposed part of a transfer whose `share` nothing hides."""
    bare = min(1.0, share)
    return bare + contention * (1 - bare)


def after(row: Collective) -> bool:
    """Whether a transfer waits for the last microbatch."""
    return row.phase == "optimizer" or row.carries == "scalar"
