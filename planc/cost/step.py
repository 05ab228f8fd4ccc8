"""Seconds of one optimizer step, every one with a name. What of its transfers is exposed: `planc.cost.exposed`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

from planc.cost.compute import SectionTime, model_flops_per_token, peak_flops_per_s, section_time
from planc.cost.exposed import after, asked_s, between_stages, by_stage, exposed_of, seconds_of
from planc.cost.network import algorithm, collective_s
from planc.cost.offload import offload_s
from planc.cost.schedule import Timeline, busy_s, run_schedule, stage_times
from planc.cost.topology import Span, span_of
from planc.diag.light import dataclass
from planc.ir.collective import DTYPE_BYTES, Collective
from planc.ir.model import Section
from planc.ir.plan import Plan
from planc.ir.report import Step, TimedCollective
from planc.ir.sharding import Sharded
from planc.schedules import of, splits_backward
from planc.schedules.engine import StageTimes
from planc.sharding.collectives import semantic_collectives
from planc.sharding.local import stored_elements
from planc.sharding.stages import copies_on, like_ranks, microbatches_each, sections_of, sections_on, virtual_stages

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


@dataclass
class StageCost:
    """Per microbatch of one virtual stage: compute, replay and exposed transfers, by direction."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    recompute_s: float = 0.0
    weight_s: float = 0.0
    exposed_forward_s: float = 0.0
    exposed_backward_s: float = 0.0


@dataclass(frozen=True)
class Work:
    """What a step is made of before its pipeline is run; see `Timed`."""

    rows: tuple[Collective, ...]
    like: tuple[int, ...]
    seconds: dict[int, float]
    exposed: dict[int, float]
    spans: dict[tuple[str, ...], Span]
    times: StageTimes
    costs: tuple[StageCost, ...]
    after_s: tuple[float, ...]
    busy_s: tuple[float, ...]
    """Inside the pipeline, by rank."""

    @property
    def slowest(self) -> int:
        """The pipeline rank with the most to do."""
        return max(range(len(self.busy_s)), key=lambda r: self.busy_s[r] + self.after_s[r])


def step_time(sharded: Sharded, rows: tuple[Collective, ...] | None = None) -> Timed:
    """Simulate the pipeline with each stage's time and add what happens once a step."""
    return simulated(sharded, stage_work(sharded, rows))


def stage_work(sharded: Sharded, rows: tuple[Collective, ...] | None = None) -> Work:
    """Each stage's seconds, and what happens once a step.

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
    homes = {v: like[rank] for rank in range(plan.pipeline) for v in virtual_stages(plan, rank)}
    costs = _stage_costs(sharded, homes, bare, sections)
    send = next((collective_s(r.op, r.buffer_bytes, spans[r.axes]) for r in rows if between_stages(r)), 0.0)
    times = stage_times(
        [c.forward_s + c.exposed_forward_s for c in costs],
        [c.backward_s + c.recompute_s + c.exposed_backward_s for c in costs],
        send,
        [c.weight_s for c in costs],
    )
    late = _once(rows, exposed)
    return Work(
        rows=rows,
        like=like,
        seconds=seconds,
        exposed=exposed,
        spans=spans,
        times=times,
        costs=tuple(costs),
        after_s=tuple(late.get(r, 0.0) for r in like),
        busy_s=busy_s(plan.split, plan.pipeline, plan.microbatches, times),
    )


def simulated(sharded: Sharded, work: Work) -> Timed:
    """The step with its pipeline run."""
    plan = sharded.plan
    timeline = run_schedule(plan.split, plan.pipeline, plan.microbatches, work.times)
    return Timed(
        sharded=sharded,
        step=_step(sharded, timeline.makespan_s, work),
        rows=work.rows,
        like=work.like,
        seconds=work.seconds,
        exposed=work.exposed,
        spans=work.spans,
        timeline=timeline,
        slowest=work.slowest,
        times=work.times,
        costs=work.costs,
        after_s=work.after_s,
    )


def least_s(sharded: Sharded, work: Work) -> float:
    """Seconds that the step takes at least, whatever order its pipeline runs in.

    A rank begins when its first microbatch has come through the stages before its first one, and its last
    backward goes back through them; where gradients of weights are apart the rank may still do those then.
    Its backwards begin when one has come through all stages and back to its last one.
    """
    plan = sharded.plan
    return _step(sharded, _least_makespan_s(plan, work), work).time_s


def _least_makespan_s(plan: Plan, work: Work) -> float:
    split, times = plan.split, work.times
    if split is None or split.order or of(split).copies > 1:
        return max(work.busy_s)
    apart = splits_backward(split)
    inputs = [b - w for b, w in zip(times.backward_s, times.weight_s, strict=True)] if apart else times.backward_s
    through, least = sum(times.forward_s), 0.0
    for rank, busy in enumerate(work.busy_s):
        held = virtual_stages(plan, rank)
        first, last = min(held), max(held)
        way = sum(times.forward_s[:first]) + first * times.send_s
        back = 0.0 if apart else sum(times.backward_s[:first]) + first * times.send_s
        turn = through + sum(inputs[last + 1 :]) + plan.microbatches * sum(times.backward_s[v] for v in held)
        least = max(least, way + busy + back, turn + back)
    return least


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


def _step(sharded: Sharded, makespan_s: float, work: Work) -> Step:
    """The step of the slowest rank."""
    plan, rank = sharded.plan, work.slowest
    mine = [work.costs[v] for v in virtual_stages(plan, rank)]
    times = microbatches_each(plan)
    compute = times * sum(c.forward_s + c.backward_s for c in mine)
    recompute = times * sum(c.recompute_s for c in mine)
    exposed_s = sum(work.exposed[id(r)] for r in work.rows if r.stage == work.like[rank])
    bubble = makespan_s - work.busy_s[rank]
    optimizer = optimizer_s(sharded, rank)
    overhead = overhead_s(plan, rank)
    offload = offload_s(sharded, rank, compute + recompute)
    total = compute + recompute + exposed_s + bubble + optimizer + offload + overhead
    flops = model_flops_per_token(plan.model, plan.batch.sequence_tokens) * plan.batch.tokens
    chip = plan.cluster.chip
    per_device = flops / total / plan.mesh.devices
    return Step(
        time_s=total,
        tokens_per_s_per_device=plan.batch.tokens / total / plan.mesh.devices,
        tflops_per_device=per_device / 1e12,
        mfu=per_device / (peak_flops_per_s(chip, plan.precision.compute) / chip.devices),
        compute_s=compute,
        recompute_s=recompute,
        exposed_comm_s=exposed_s,
        bubble_s=bubble,
        optimizer_s=optimizer,
        offload_s=offload,
        overhead_s=overhead,
    )


def overhead_s(plan: Plan, rank: int) -> float:
    """What a step takes on a rank besides compute and transfers: the host once a step, a launch a stage and
    microbatch."""
    chip = plan.cluster.chip
    return chip.step_s + chip.launch_s * microbatches_each(plan) * len(virtual_stages(plan, rank))


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
    bandwidth = chip.memory_bandwidth_bytes_per_s / chip.devices * chip.memory_efficiency
    return OPTIMIZER_PASSES * state / bandwidth


def axis_spans(sharded: Sharded) -> dict[str, Span]:
    """Where every mesh axis lies."""
    plan = sharded.plan
    return {name: span_of(plan.mesh, plan.cluster, (name,)) for name in plan.mesh.every}
