"""Seconds of one optimizer step, by named parts.

Rows of collectives are converted to transfers (`planc.costing.step.transfers`). Each rank's transfers and compute give
its exposed seconds (`planc.costing.step.rank_cost`). A simulated pipeline combines all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from operator import add

from planc.costing.compute.flops import model_flops_per_token
from planc.costing.compute.section import section_time
from planc.costing.machine.collective_time import algorithm
from planc.costing.machine.group import device_group
from planc.costing.machine.rates import peak_flops_per_s, rated_dtype
from planc.costing.machine.topology import DeviceGroup
from planc.costing.step.lockstep_cost import LockstepCost
from planc.costing.step.offload import offload_s
from planc.costing.step.optimizer import Sections, optimizer_s, update_seconds
from planc.costing.step.overlap import exposed_activations, waited
from planc.costing.step.rank_cost import RankCost, StageCost, rank_cost, stage_cost
from planc.costing.step.section_cost import SectionSeconds, section_seconds, stage_boundary_s
from planc.costing.step.transfers import (
    LinkTimes,
    Transfer,
    axes_that_wait,
    between_stages,
    state_transfers,
    transfers_of_rows,
)
from planc.diag.fast_dataclass import dataclass
from planc.ir.collective import Collective
from planc.ir.model import Section
from planc.ir.plan import Plan, Split
from planc.ir.report import Step, TimedCollective
from planc.ir.sharding import Sharded
from planc.pipeline.lockstep import in_lockstep
from planc.pipeline.stage_times import StageTimes, busy_s, stage_times
from planc.pipeline.timeline import Timeline, run_schedule
from planc.sharding.activation_collectives import PHASES, ActivationPhase
from planc.sharding.collectives import scattering_axes, semantic_collectives
from planc.sharding.stage_assignment import (
    StageKinds,
    load_of,
    microbatches_each,
    rank_classes,
    replayed_copies,
    sections_of,
    stages_on,
    virtual_stages,
)


@dataclass(frozen=True)
class Timed:
    """A step, with the collectives and the pipeline timeline from which it is computed."""

    sharded: Sharded
    step: Step
    rows: tuple[Collective, ...]
    """The collectives of one rank of each class."""
    rank_classes: tuple[int, ...]
    """For each pipeline rank, the rank of its class whose collectives are in `rows`."""
    seconds: tuple[float, ...]
    """Seconds of all calls of each row."""
    exposed: tuple[float, ...]
    """Exposed seconds of each row."""
    groups: dict[tuple[str, ...], DeviceGroup]
    """The device groups of the rows, by axes."""
    timeline: Timeline
    split: Split | None
    """The pipeline that was timed: the plan's, or the lockstep pipeline of a target's program."""
    slowest: int
    times: StageTimes
    """Seconds of each virtual stage in the simulation of the timeline."""
    costs: tuple[StageCost, ...]
    """Seconds by part for each virtual stage."""
    after_s: tuple[float, ...]
    """Exposed transfers after the last microbatch, by rank."""
    offload_s: tuple[float, ...]
    """Exposed transfers to and from host memory, by rank."""
    updates: dict[Sections, float]
    """Seconds to update one copy of the parameters, by the sections that use them."""
    cost: RankCost
    """The slowest rank's transfers of state, with the compute that hides them."""

    @property
    def mine(self) -> list[Collective]:
        """The collectives of the slowest rank, whose exposed seconds are part of the step."""
        return [r for r in self.rows if r.stage == self.rank_classes[self.slowest]]

    @cached_property
    def collectives(self) -> tuple[TimedCollective, ...]:
        """The collectives of all ranks, with their seconds. Only those of the slowest rank have exposed seconds."""
        calls = {(r.op, r.axes, r.buffer_bytes) for r in self.rows}
        chosen = {(op, axes, size): algorithm(op, self.groups[axes], size) for op, axes, size in calls}
        return tuple(
            TimedCollective(
                row=r,
                time_s=time_s,
                exposed_s=exposed_s if r.stage == self.slowest else 0.0,
                level=self.groups[r.axes].level,
                algorithm=chosen[r.op, r.axes, r.buffer_bytes],
            )
            for r, time_s, exposed_s in self._rows_by_rank()
        )

    def _rows_by_rank(self) -> Iterator[tuple[Collective, float, float]]:
        """Yield each collective of every rank with its seconds and its exposed seconds. These are known for one rank of
        each class of equal ranks, whose collectives have the same order."""
        if all(like == rank for rank, like in enumerate(self.rank_classes)):
            yield from zip(self.rows, self.seconds, self.exposed, strict=True)
            return
        timed: dict[int, list[tuple[float, float]]] = {}
        for r, time_s, exposed_s in zip(self.rows, self.seconds, self.exposed, strict=True):
            timed.setdefault(r.stage, []).append((time_s, exposed_s))
        nexts = {rank: iter(timed.get(like, ())) for rank, like in enumerate(self.rank_classes)}
        yield from ((r, *next(nexts[r.stage])) for r in semantic_collectives(self.sharded))


def by_stage(rows: Iterable[Collective]) -> dict[int, list[Collective]]:
    """Return the collectives in `rows` by pipeline rank, in order.

    >>> {rank: len(rows) for rank, rows in by_stage(costed.timed.rows).items()}  # one rank of each class
    {0: 35, 1: 32, 3: 39}
    """
    found: dict[int, list[Collective]] = {}
    for r in rows:
        found.setdefault(r.stage, []).append(r)
    return found


def step_time(sharded: Sharded, rows: tuple[Collective, ...] | None = None, links: LinkTimes | None = None) -> Timed:
    """Return the cost of a step: of every rank, of the simulated pipeline, and of the work done once a step.

    `rows` are the collectives of a target's program for `sharded`'s plan, rank by rank. By default they are the plan's
    own, for one rank of each class of equal ranks. `links` holds the seconds of collective calls (None: computed anew).

    >>> timed = step_time(sharded)
    >>> f"{timed.step.time_s:.2f} s, {timed.step.bubble_s:.2f} s of it bubble"
    '6.23 s, 0.50 s of it bubble'
    """
    plan = sharded.plan
    classes = tuple(range(plan.pipeline)) if rows is not None else rank_classes(plan)
    if rows is None:
        rows = semantic_collectives(sharded, sorted({*classes}))
    step = _StepCost(sharded, rows, links or LinkTimes())
    stages = [virtual_stages(plan, rank) for rank in range(plan.pipeline)]
    costs = step.stage_costs({v: classes[rank] for rank, held in enumerate(stages) for v in held})
    split, send_s = plan.split, step.send_s()
    if step.lockstep is not None:
        split, send_s = in_lockstep(plan.split), 0.0  # its stages wait for what they send
    ranks = [step.rank(rank).cost for rank in classes]
    work = rank_work(plan, stages, costs, send_s, ranks, step.optimizer_s, partial(offload_s, sharded))
    timeline = run_schedule(split, plan.pipeline, plan.microbatches, work.times)
    exposed = {rank: step.exposed(rank) for rank in classes}
    return Timed(
        sharded=sharded,
        step=step_of(plan, work, timeline.makespan_s),
        rows=rows,
        rank_classes=classes,
        seconds=tuple(r.count * sum(step.links.call_s(plan, r.op, r.buffer_bytes, r.axes)) for r in rows),
        exposed=tuple(next(exposed[r.stage]) for r in rows),
        groups={axes: step.links.group(plan, axes) for axes in {row.axes for row in rows}},
        timeline=timeline,
        split=split,
        slowest=work.slowest,
        times=work.times,
        costs=tuple(costs),
        after_s=work.after_s,
        offload_s=tuple([work.offload_s(rank, timeline.makespan_s) for rank in range(plan.pipeline)]),
        updates=step.updates,
        cost=step.rank(classes[work.slowest]).cost,
    )


@dataclass(frozen=True, slots=True)
class _RankOfStep:
    """The cost of a pipeline rank, and what it is computed from. Equal ranks share one object."""

    transfers: list[Transfer]
    activations: dict[Section, dict[ActivationPhase, tuple[list[float], float]]]
    """Exposed seconds of each activation transfer for one copy and microbatch, in the order of `transfers`, and the
    seconds of compute that hide the rest."""
    compute: dict[Section, SectionSeconds]
    replayed: dict[Section, int]
    cost: RankCost


class _StepCost:
    """The costs of all pipeline ranks of one step, computed from the collectives of each rank."""

    def __init__(self, sharded: Sharded, rows: Iterable[Collective], links: LinkTimes) -> None:
        self.sharded, self.plan, self.links = sharded, sharded.plan, links
        self.rows = by_stage(rows)
        self._times = {s: section_time(sharded, s, self.plan.cluster.chip) for s in sharded.ops}
        self.updates = update_seconds(sharded)
        self.lockstep = LockstepCost(self.plan) if sharded.stack.lockstep and self.plan.split is not None else None
        self._ranks: dict[int, _RankOfStep] = {}
        self._known: dict[object, _RankOfStep] = {}

    def rank(self, rank: int) -> _RankOfStep:
        if rank not in self._ranks:
            load, replayed = load_of(self.plan, rank), replayed_copies(self.plan, rank)
            stages = stages_on(self.plan, rank)
            if self.lockstep is not None:
                load, replayed, stages = self.lockstep.load(rank), self.lockstep.replayed(rank), self.lockstep.stages()
            transfers = transfers_of_rows(self.plan, self.rows.get(rank, ()), load, replayed, self.links)
            if self.lockstep is not None:
                transfers = self.lockstep.useful(transfers)
            key = (*load.items(), *replayed.items(), *stages.items(), *transfers)
            if key not in self._known:
                self._known[key] = self._cost(load, replayed, stages, transfers)
            self._ranks[rank] = self._known[key]
        return self._ranks[rank]

    def _cost(
        self, load: dict[Section, int], replayed: dict[Section, int], stages: StageKinds, transfers: list[Transfer]
    ) -> _RankOfStep:
        plan = self.plan
        moving: dict[tuple[Section, str], list[Transfer]] = {}
        for t in transfers:
            if t.carries == "activation":
                moving.setdefault((t.section, t.phase), []).append(t)
        exposed = {s: {phase: self._exposed(s, phase, moving.get((s, phase), ())) for phase in PHASES} for s in load}
        waits = {s: {phase: waited(moving.get((s, phase), ()), exposed[s][phase][0]) for phase in PHASES} for s in load}
        compute = {s: section_seconds(self._times[s], exposed[s], waits[s]) for s in load}
        state = state_transfers(plan, transfers)
        cost = rank_cost(load, replayed, stages, microbatches_each(plan), compute, state, plan.cluster.chip.contention)
        return _RankOfStep(transfers, exposed, compute, replayed, cost)

    def _exposed(
        self, section: Section, phase: ActivationPhase, transfers: Sequence[Transfer]
    ) -> tuple[list[float], float]:
        """Return the exposed seconds of each activation transfer for one microbatch, and the seconds of compute that
        hide the rest. The seconds of a transfer that runs once a step are divided by the number of microbatches."""
        each, hidden_s = exposed_activations(self.sharded, section, phase, transfers)
        times = microbatches_each(self.plan)
        return [s / times if t.per == "step" else s for s, t in zip(each, transfers, strict=True)], hidden_s

    def stage_costs(self, homes: dict[int, int]) -> list[StageCost]:
        """Return the seconds of each virtual stage. `homes` maps a stage to a pipeline rank that has the same cost as
        the stage's own rank. Equal stages share one object."""
        if self.lockstep is not None:
            of_stages = {
                v: stage_cost(self.lockstep.sections(v), rank.compute, rank.cost, rank.replayed)
                for v in range(len(self.plan.stages))
                for rank in [self.rank(homes[v])]
            }
            return self.lockstep.stage_costs(of_stages, self._times, self.send_s())
        known: dict[tuple[object, ...], StageCost] = {}
        costs = []
        for v in range(len(self.plan.stages)):
            sections = sections_of(self.plan, v)
            key = (homes[v], *sections.items())
            if key not in known:
                rank = self.rank(homes[v])
                known[key] = stage_cost(sections, rank.compute, rank.cost, rank.replayed)
            costs.append(known[key])
        return costs

    def send_s(self) -> float:
        sends = (r for here in self.rows.values() for r in here if between_stages(r))
        parts = self.plan.mesh.size(*scattering_axes(self.plan, self.sharded.stack))
        return next(
            (stage_boundary_s(self.plan, self.sharded.stack, r.buffer_bytes * parts, self.links) for r in sends), 0.0
        )

    def optimizer_s(self, rank: int) -> float:
        return optimizer_s(self.updates, updated_load(self.sharded, rank), self.plan.model.blocks)

    def exposed(self, rank: int) -> Iterator[float]:
        """Yield the exposed seconds per step of each collective of `rank`, in their order."""
        one, waiting = self.rank(rank), axes_that_wait(self.plan)
        activations = {s: {phase: iter(each) for phase, (each, _) in of.items()} for s, of in one.activations.items()}
        for r, t in zip(self.rows.get(rank, ()), one.transfers, strict=True):
            if between_stages(r):
                yield self._exposed_send_s(r)
            elif t.carries == "activation" and t.section in activations and t.phase != "optimizer":
                copies = one.replayed if t.phase == "recompute" else one.cost.load
                each = next(activations[t.section][t.phase])
                yield each * copies[t.section] * one.cost.times
            else:
                yield one.cost.exposed_s(t, not waiting.isdisjoint(t.axes))

    def _exposed_send_s(self, row: Collective) -> float:
        """Return the exposed seconds per step of a pipeline's sends (`row`). They are 0 except in lockstep (all ranks
        run one program), because otherwise the simulated schedule contains them."""
        if self.lockstep is None or row.phase == "forward":
            return 0.0
        return self.lockstep.chunks * self.plan.microbatches * self.send_s()


def updated_load(sharded: Sharded, rank: int) -> dict[str, int]:
    """Return the copies of each section (embedding, layers, head) that pipeline rank `rank` of `sharded` updates. In
    lockstep every rank also updates embedding and head.

    >>> from dataclasses import replace
    >>> updated_load(sharded, 1), updated_load(replace(sharded, stack=replace(sharded.stack, lockstep=True)), 1)
    ({'block': 20}, {'first': 1, 'block': 20, 'last': 1})
    """
    if not sharded.stack.lockstep or sharded.plan.split is None:
        return load_of(sharded.plan, rank)
    return {"first": 1, **LockstepCost(sharded.plan).load(rank), "last": 1}


def copies_run(sharded: Sharded, rank: int) -> dict[str, float]:
    """Return the copies of each section (embedding, layers, head) that pipeline rank `rank` of `sharded` runs for a
    microbatch. In lockstep it runs a share of embedding and head, and as many layers as the rank with the most.

    >>> from dataclasses import replace
    >>> copies_run(sharded, 0), copies_run(replace(sharded, stack=replace(sharded.stack, lockstep=True)), 0)
    ({'first': 1, 'block': 20}, {'first': 0.25, 'block': 20, 'last': 0.25})
    """
    if not sharded.stack.lockstep or sharded.plan.split is None:
        return dict(load_of(sharded.plan, rank))
    share = 1 / sharded.plan.pipeline
    return {"first": share, **LockstepCost(sharded.plan).load(rank), "last": share}


@dataclass(frozen=True, slots=True)
class RankWork:
    """Seconds of a step before its pipeline is simulated. Fields that are not by rank apply to the critical rank, but
    `optimizer_s` to the rank with the slowest update."""

    times: StageTimes
    """Seconds of a microbatch on each virtual stage."""
    busy_s: tuple[float, ...]
    """Busy seconds of each rank inside the pipeline."""
    after_s: tuple[float, ...]
    """Exposed transfers after the last microbatch, by rank."""
    slowest: int
    """The critical rank: the one with the most busy seconds, work after the pipeline included."""
    compute_s: float
    recompute_s: float
    exposed_s: float
    optimizer_s: float
    offload_s: Callable[[int, float], float]
    """Exposed transfers to and from host memory of a rank, in a pipeline that takes so many seconds."""
    overhead_s: float

    def total_s(self, makespan_s: float) -> float:
        """Return the seconds of the step if its pipeline takes `makespan_s`."""
        bubble_s = makespan_s - self.busy_s[self.slowest]
        inside_s = self.compute_s + self.recompute_s + self.exposed_s + bubble_s
        return inside_s + self.optimizer_s + self.offload_s(self.slowest, makespan_s) + self.overhead_s


def critical_rank(busy_s: Sequence[float], after_s: Sequence[float]) -> int:
    """Return the pipeline rank that is busiest in (`busy_s`) and after (`after_s`) the pipeline; the first of equals.

    >>> critical_rank([3.0, 4.0, 4.0], [1.0, 0.5, 0.0])
    1
    """
    total = list(map(add, busy_s, after_s))
    return total.index(max(total))


def rank_work(
    plan: Plan,
    held: Sequence[Sequence[int]],
    costs: Sequence[StageCost],
    send_s: float,
    ranks: Sequence[RankCost],
    optimizer_s: Callable[[int], float],
    offload_s: Callable[[int, float, float], float],
) -> RankWork:
    """Return the seconds of a step before its pipeline is simulated.

    Args:
        held: the virtual stages of each pipeline rank.
        costs: seconds of one microbatch on each virtual stage.
        send_s: seconds to send a microbatch from one stage to the next.
        ranks: the exposed transfers of state of each rank.
        optimizer_s: function that returns the seconds of a rank's update.
        offload_s: function that returns the exposed seconds of a rank's transfers to its host, given the rank, the
            seconds of the pipeline, and the exposed seconds of its once-per-step transfers.
    """
    times = stage_times(
        [c.forward_s + c.exposed_forward_s for c in costs],
        [c.backward_s + c.recompute_s + c.exposed_backward_s for c in costs],
        send_s,
        [c.weight_s for c in costs],
    )
    each = microbatches_each(plan)
    busy = busy_s(held, each, times)
    after_s = tuple([one.after_s for one in ranks])
    rank = critical_rank(busy, after_s)
    mine = [costs[v] for v in held[rank]]
    compute = each * sum(c.forward_s + c.backward_s for c in mine)
    recompute = each * sum(c.recompute_s for c in mine)
    return RankWork(
        times=times,
        busy_s=busy,
        after_s=after_s,
        slowest=rank,
        compute_s=compute,
        recompute_s=recompute,
        exposed_s=each * sum(c.exposed_forward_s + c.exposed_backward_s for c in mine) + after_s[rank],
        # The norm over all gradients, or the next step, waits for every rank: the slowest update counts.
        optimizer_s=max(map(optimizer_s, range(len(held)))),
        offload_s=lambda on, makespan_s: offload_s(on, makespan_s, ranks[on].late_s),
        overhead_s=overhead_s(plan, len(held[rank])),
    )


def overhead_s(plan: Plan, stages: int) -> float:
    """Return the overhead seconds of a step on a rank with `stages` virtual stages: the host's time once a step, and a
    launch for each stage and microbatch of `plan`.

    >>> from dataclasses import replace
    >>> slow = replace(plan, cluster=replace(plan.cluster, chip=replace(h100, step_s=0.01, launch_s=3e-6)))
    >>> f"{overhead_s(slow, stages=1) * 1e3:.3f} ms"  # 10 ms, and 32 microbatches x 3 us
    '10.096 ms'
    """
    chip = plan.cluster.chip
    return chip.step_s + chip.launch_s * microbatches_each(plan) * stages


def step_of(plan: Plan, work: RankWork, makespan_s: float) -> Step:
    """Return the times of a step of `plan`, on its critical rank with a pipeline of `makespan_s`, with MFU and rates.

    `work` holds the seconds of every rank. Rates are per device. MFU is model FLOPs over the dense peak of the compute
    dtype (Chowdhery et al. 2022, PaLM, appendix B).

    >>> held, times = [[0], [1], [2], [3]], stage_times([0.06] * 4, [0.12] * 4)
    >>> work = RankWork(times, busy_s(held, 32, times), (0.0,) * 4, 0, 5.76, 0.0, 0.0, 0.0, lambda *_: 0.0, 0.0)
    >>> step = step_of(plan, work, makespan_s=6.3)
    >>> f"{step.mfu:.0%}, {step.bubble_s:.2f} s of bubble"  # 449 GFLOP x 4.2 million tokens over 512 x 989e12 x 6.3 s
    '59%, 0.54 s of bubble'
    """
    total = work.total_s(makespan_s)
    flops = model_flops_per_token(plan.model, plan.batch.sequence_tokens) * plan.batch.tokens
    chip = plan.cluster.chip
    per_device = flops / total / plan.mesh.devices
    peak = peak_flops_per_s(chip, plan.precision.multiplied) / chip.devices
    return Step(
        time_s=total,
        tokens_per_s_per_device=plan.batch.tokens / total / plan.mesh.devices,
        tflops_per_device=per_device / 1e12,
        mfu=per_device / peak,
        peak_tflops=peak / 1e12,
        peak_dtype=rated_dtype(chip, plan.precision.multiplied),
        compute_s=work.compute_s,
        recompute_s=work.recompute_s,
        exposed_comm_s=work.exposed_s,
        bubble_s=max(0.0, makespan_s - work.busy_s[work.slowest]),
        optimizer_s=work.optimizer_s,
        offload_s=work.offload_s(work.slowest, makespan_s),
        overhead_s=work.overhead_s,
    )


def axis_groups(sharded: Sharded) -> dict[str, DeviceGroup]:
    """Return the device group of each mesh axis of `sharded`'s plan, by name.

    >>> {axis: group.level for axis, group in axis_groups(sharded).items()}
    {'pp': 'spine', 'fsdp': 'leaf', 'tp': 'nvlink4'}
    """
    plan = sharded.plan
    return {name: device_group(plan.mesh, plan.cluster, (name,)) for name in plan.mesh.every}
