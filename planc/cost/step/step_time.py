"""Seconds of one optimizer step, every one with a name. What of its transfers is exposed: `planc.cost.step.overlap`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from operator import add

from planc.cost.compute.flops import model_flops_per_token
from planc.cost.compute.section import SectionTime, section_time
from planc.cost.machine.collective_time import algorithm, collective_s
from planc.cost.machine.rates import memory_bytes_per_s, peak_flops_per_s
from planc.cost.machine.topology import Span, span_of
from planc.cost.step.offload import offload_s
from planc.cost.step.overlap import after, asked_s, between_stages, by_stage, exposed_of, seconds_of
from planc.diag.fast_dataclass import dataclass
from planc.ir.collective import DTYPE_BYTES, Collective
from planc.ir.model import Section
from planc.ir.plan import Plan
from planc.ir.report import Step, TimedCollective
from planc.ir.sharding import Sharded
from planc.pipeline.lower_bound import critical_path_lower_bound_s, makespan_lower_bound_s
from planc.pipeline.stage_times import StageTimes, busy_s, stage_times
from planc.pipeline.timeline import Timeline, run_schedule
from planc.sharding.collectives import semantic_collectives
from planc.sharding.local import stored_elements
from planc.sharding.stage_assignment import (
    copies_on,
    like_ranks,
    microbatches_each,
    sections_of,
    sections_on,
    virtual_stages,
)

OPTIMIZER_PASSES = 7
"""AdamW reads gradient, master and two moments and writes three of them."""


@dataclass(frozen=True)
class Timed:
    """The step with the rows and the timeline it is made of."""

    sharded: Sharded
    step: Step
    rows: tuple[Collective, ...]
    """Of ranks that differ."""
    like: tuple[int, ...]
    """For each pipeline rank the one whose rows are there."""
    seconds: dict[int, float]
    """Of each row, by `id`: all its calls."""
    exposed: dict[int, float]
    """Of each row, by `id`: what nothing hides."""
    spans: dict[tuple[str, ...], Span]
    """Where the groups of the rows lie, by axes."""
    timeline: Timeline
    slowest: int
    times: StageTimes
    """What the timeline was simulated with."""
    costs: tuple[StageCost, ...]
    """What the times are made of, by virtual stage."""
    after_s: tuple[float, ...]
    """Exposed transfers after the last microbatch, by rank."""

    @property
    def mine(self) -> list[Collective]:
        """The rows of a rank like the slowest: what they expose, the step takes longer."""
        return [r for r in self.rows if r.stage == self.like[self.slowest]]

    @cached_property
    def collectives(self) -> tuple[TimedCollective, ...]:
        """The rows of the report, of all ranks, made when they are asked for: a search asks for none.

        Only the slowest rank's exposed seconds are the step's.
        """
        calls = {(r.op, r.axes, r.buffer_bytes) for r in self.rows}
        ways = {(op, axes, size): algorithm(op, self.spans[axes], size) for op, axes, size in calls}
        return tuple(
            TimedCollective(
                row=r,
                time_s=self.seconds[id(known)],
                exposed_s=self.exposed[id(known)] if r.stage == self.slowest else 0.0,
                level=self.spans[r.axes].level,
                algorithm=ways[r.op, r.axes, r.buffer_bytes],
            )
            for r, known in self._every()
        )

    def _every(self) -> Iterator[tuple[Collective, Collective]]:
        """Each rank's rows with the rows that are timed: in each rank's own order these are the same."""
        if all(like == rank for rank, like in enumerate(self.like)):
            yield from ((r, r) for r in self.rows)
            return
        timed = by_stage(self.rows)
        nexts = {rank: iter(timed.get(like, ())) for rank, like in enumerate(self.like)}
        yield from ((r, next(nexts[r.stage])) for r in semantic_collectives(self.sharded))


@dataclass(slots=True)
class StageCost:
    """Per microbatch of one virtual stage: compute, replay and exposed transfers, by direction."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    recompute_s: float = 0.0
    weight_s: float = 0.0
    exposed_forward_s: float = 0.0
    exposed_backward_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds of a step before its pipeline is run."""

    times: StageTimes
    """A microbatch on each stage."""
    busy_s: tuple[float, ...]
    """Of each rank, inside the pipeline."""
    after_s: tuple[float, ...]
    """Exposed transfers after the last microbatch, by rank."""
    slowest: int
    """The rank with the most to do; the rest is its own."""
    compute_s: float
    recompute_s: float
    exposed_s: float
    optimizer_s: float
    offload_s: float
    overhead_s: float

    def total_s(self, makespan_s: float) -> float:
        """Of the step, when its pipeline takes so long."""
        bubble_s = makespan_s - self.busy_s[self.slowest]
        inside_s = self.compute_s + self.recompute_s + self.exposed_s + bubble_s
        return inside_s + self.optimizer_s + self.offload_s + self.overhead_s


def most_to_do(busy_s: Sequence[float], after_s: Sequence[float]) -> int:
    """The pipeline rank that is busy the longest with what comes after."""
    total = list(map(add, busy_s, after_s))
    return total.index(max(total))


def step_time(sharded: Sharded, rows: tuple[Collective, ...] | None = None) -> Timed:
    """Simulate the pipeline with each stage's time and add what happens once a step.

    `rows` are what a target makes of the plan's collectives, rank by rank. Without them the plan's own count,
    which ranks that hold alike sections share.
    """
    plan = sharded.plan
    like = tuple(range(plan.pipeline)) if rows is not None else like_ranks(plan)
    if rows is None:
        rows = semantic_collectives(sharded, sorted({*like}))
    spans = {axes: span_of(plan.mesh, plan.cluster, axes) for axes in {row.axes for row in rows}}
    seconds = seconds_of(rows, spans)
    sections = {s: section_time(sharded, s, plan.cluster.chip) for s in sharded.ops}
    exposed = exposed_of(sharded, rows, seconds, sections)
    for r in rows:
        if asked := asked_s(r, spans):
            seconds[id(r)] += asked
            exposed[id(r)] += 0.0 if between_stages(r) else asked
    bare = _bare(rows, exposed)
    held = [virtual_stages(plan, rank) for rank in range(plan.pipeline)]
    homes = {v: like[rank] for rank, stages in enumerate(held) for v in stages}
    costs = _stage_costs(sharded, homes, bare, sections)
    send = next((collective_s(r.op, r.buffer_bytes, spans[r.axes]) for r in rows if between_stages(r)), 0.0)
    late = _once(rows, exposed)
    after_s = tuple(late.get(r, 0.0) for r in like)
    work = work_of(plan, held, costs, send, after_s, partial(optimizer_s, sharded), partial(offload_s, sharded))
    timeline = run_schedule(plan.split, plan.pipeline, plan.microbatches, work.times)
    return Timed(
        sharded=sharded,
        step=step_of(plan, work, timeline.makespan_s),
        rows=rows,
        like=like,
        seconds=seconds,
        exposed=exposed,
        spans=spans,
        timeline=timeline,
        slowest=work.slowest,
        times=work.times,
        costs=tuple(costs),
        after_s=after_s,
    )


def work_of(
    plan: Plan,
    held: Sequence[Sequence[int]],
    costs: Sequence[StageCost],
    send_s: float,
    after_s: tuple[float, ...],
    optimizer_s: Callable[[int], float],
    offload_s: Callable[[int, float], float],
) -> Work:
    """What the step is made of, with the virtual stages that each rank holds and their costs; the last two say what a
    rank does besides, the second beside seconds of compute."""
    times = stage_times(
        [c.forward_s + c.exposed_forward_s for c in costs],
        [c.backward_s + c.recompute_s + c.exposed_backward_s for c in costs],
        send_s,
        [c.weight_s for c in costs],
    )
    each = microbatches_each(plan)
    busy = busy_s(held, each, times)
    rank = most_to_do(busy, after_s)
    mine = [costs[v] for v in held[rank]]
    compute = each * sum(c.forward_s + c.backward_s for c in mine)
    recompute = each * sum(c.recompute_s for c in mine)
    return Work(
        times=times,
        busy_s=busy,
        after_s=after_s,
        slowest=rank,
        compute_s=compute,
        recompute_s=recompute,
        exposed_s=each * sum(c.exposed_forward_s + c.exposed_backward_s for c in mine) + after_s[rank],
        optimizer_s=optimizer_s(rank),
        offload_s=offload_s(rank, compute + recompute),
        overhead_s=overhead_s(plan, len(held[rank])),
    )


def critical_path_step_s(plan: Plan, held: Sequence[Sequence[int]], work: Work) -> float:
    """Lower bound on the step time (s), whatever order the pipeline runs in; `held` are the stages of each rank."""
    return work.total_s(critical_path_lower_bound_s(plan.split, held, plan.microbatches, work.times))


def step_lower_bound_s(plan: Plan, held: Sequence[Sequence[int]], work: Work) -> float:
    """Lower bound on the step time (s) with the pipeline's own order: nearer than `critical_path_step_s`, and slower
    to compute."""
    return work.total_s(makespan_lower_bound_s(plan.split, held, plan.microbatches, work.times))


def _once(rows: Iterable[Collective], exposed: dict[int, float]) -> dict[int, float]:
    """Exposed seconds of each rank outside the pipeline: reductions and scalars after the last microbatch."""
    found: dict[int, float] = {}
    for r in rows:
        if after(r):
            found[r.stage] = found.get(r.stage, 0.0) + exposed[id(r)]
    return found


# Stages.


Bare = dict[tuple[int, Section], list[float]]
"""Exposed seconds of a step inside the pipeline, by rank and section: forward, and all the rest."""


def _bare(rows: tuple[Collective, ...], exposed: dict[int, float]) -> Bare:
    found: Bare = {}
    for r in rows:
        if not after(r):
            found.setdefault((r.stage, r.section), [0.0, 0.0])[r.phase != "forward"] += exposed[id(r)]
    return found


def _stage_costs(
    sharded: Sharded, homes: dict[int, int], bare: Bare, sections: dict[Section, SectionTime]
) -> list[StageCost]:
    """By virtual stage; those of a rank that hold alike sections cost alike."""
    known: dict[tuple[object, ...], StageCost] = {}
    costs = []
    for v in range(len(sharded.plan.stages)):
        key = (homes[v], *sections_of(sharded.plan, v).items())
        if key not in known:
            known[key] = _stage_cost(sharded, v, homes[v], bare, sections)
        costs.append(known[key])
    return costs


def _stage_cost(sharded: Sharded, stage: int, rank: int, bare: Bare, sections: dict[Section, SectionTime]) -> StageCost:
    """One virtual stage's seconds for one microbatch; a rank's exposed seconds go by layers."""
    plan = sharded.plan
    held, times = sections_on(plan, rank), microbatches_each(plan)
    cost = StageCost()
    for section, n in sections_of(plan, stage).items():
        one = sections[section]
        cost.forward_s += n * one.forward_s
        cost.backward_s += n * one.backward_s
        cost.recompute_s += n * one.recompute_s
        cost.weight_s += n * one.weight_s
        forward, backward = bare.get((rank, section), (0.0, 0.0))
        share = n / held[section] / times
        cost.exposed_forward_s += forward * share
        cost.exposed_backward_s += backward * share
    return cost


def step_of(plan: Plan, work: Work, makespan_s: float) -> Step:
    """The step of the slowest rank, when its pipeline takes so long."""
    total = work.total_s(makespan_s)
    flops = model_flops_per_token(plan.model, plan.batch.sequence_tokens) * plan.batch.tokens
    chip = plan.cluster.chip
    per_device = flops / total / plan.mesh.devices
    return Step(
        time_s=total,
        tokens_per_s_per_device=plan.batch.tokens / total / plan.mesh.devices,
        tflops_per_device=per_device / 1e12,
        mfu=per_device / (peak_flops_per_s(chip, plan.precision.compute) / chip.devices),
        compute_s=work.compute_s,
        recompute_s=work.recompute_s,
        exposed_comm_s=work.exposed_s,
        bubble_s=makespan_s - work.busy_s[work.slowest],
        optimizer_s=work.optimizer_s,
        offload_s=work.offload_s,
        overhead_s=work.overhead_s,
    )


def overhead_s(plan: Plan, stages: int) -> float:
    """What a step takes on a rank with so many virtual stages besides compute and transfers: the host once a step, a
    launch a stage and microbatch."""
    chip = plan.cluster.chip
    return chip.step_s + chip.launch_s * microbatches_each(plan) * stages


def optimizer_s(sharded: Sharded, rank: int) -> float:
    """AdamW is bound by memory: every state byte of the device's share, OPTIMIZER_PASSES times."""
    plan = sharded.plan
    chip = plan.cluster.chip
    sections = sections_on(plan, rank)
    state = sum(
        copies_on(plan, p.param, sections)
        * stored_elements(plan, p, p.stored["optimizer"])
        * DTYPE_BYTES[plan.store_dtype("optimizer", p.param.region)]
        for p in sharded.params
    )
    return OPTIMIZER_PASSES * state / memory_bytes_per_s(chip)


def axis_spans(sharded: Sharded) -> dict[str, Span]:
    """Where every mesh axis lies."""
    plan = sharded.plan
    return {name: span_of(plan.mesh, plan.cluster, (name,)) for name in plan.mesh.every}
