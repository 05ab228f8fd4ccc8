"""The costed plan: a plan with its time and memory, on which the cost rules run."""

from __future__ import annotations

from planc.costing.compute.flops import model_flops_per_token
from planc.costing.machine.topology import DeviceGroup
from planc.costing.memory.peak import memory
from planc.costing.step.goodput import goodput
from planc.costing.step.step_time import Timed, axis_groups, step_time
from planc.costing.step.whole_run import whole_run
from planc.diag.fast_dataclass import dataclass
from planc.ir.backend import Backend, run_by
from planc.ir.collective import Collective
from planc.ir.plan import Plan
from planc.ir.report import (
    AxisFacts,
    ClusterFacts,
    Goodput,
    Limits,
    Memory,
    ModelFacts,
    RunCost,
    Step,
    TimedCollective,
)
from planc.ir.sharding import Sharded
from planc.ir.target import Target


@dataclass(frozen=True, kw_only=True)
class CostedPlan:
    """A plan with its predicted step time, memory, limits and price, from which reports are made."""

    sharded: Sharded
    memory: Memory
    step: Step
    slowest: int
    """The pipeline rank that `step` refers to."""
    timed: Timed
    axes: tuple[AxisFacts, ...]
    limits: Limits
    goodput: Goodput
    run: RunCost | None
    """The whole run, if the plan says how long it trains or what an hour costs."""
    model: ModelFacts
    cluster: ClusterFacts
    backend: Backend | None = None
    """The backend that the plan was costed with; None for the plan's semantic collectives."""

    @property
    def target(self) -> Target | None:
        """The target (cuda or xla) whose program was costed; None if the costs are those of any correct program."""
        return None if self.backend is None else self.backend.target

    @property
    def collectives(self) -> tuple[TimedCollective, ...]:
        """All collectives of a step, each with its seconds and its exposed seconds (not hidden by compute)."""
        return self.timed.collectives

    @property
    def lower_bound_gib(self) -> float:
        """The least memory (GiB) that the fullest device needs: the lower end of its range, and no less than its
        tensors, except under XLA, which reorders and recomputes to fit (openxla's HloRematerialization)."""
        low = self.memory.reserved_gib.low
        return low if self.sharded.stack.matmuls == "xla" else max(low, self.memory.allocated_gib)

    def may_fit(self, room_gib: float) -> bool:
        """True if the fullest device may need at most `room_gib`: `check` then has no E0501, and a search without a
        fitting plan says that its nearest miss may fit."""
        return self.lower_bound_gib <= room_gib


def cost_plan(
    sharded: Sharded, collectives: tuple[Collective, ...] | None = None, *, backend: Backend | None = None
) -> CostedPlan:
    """Return the plan of `sharded` with its step time, memory and limits. The plan has passed its checks.

    Args:
        sharded: the plan with its layouts (`planc.sharding.propagate`).
        collectives: the plan's collectives, if already known; `sharded` is then the result of `run_by` for `backend`.
        backend: a target's backend, for the collectives, attention and memory of its program; None for those of any
            correct program.

    Raises:
        PlanError: the target refuses the plan.

    >>> step = cost_plan(sharded).step  # at data-sheet rates
    >>> f"{step.time_s:.1f} s, of which {step.compute_s:.1f} s compute"
    '6.2 s, of which 4.2 s compute'
    """
    plan = sharded.plan
    if backend is not None and collectives is None:
        sharded = run_by(sharded, backend)
        collectives = backend.realise(sharded)
    timed = step_time(sharded, collectives)
    groups = axis_groups(sharded)
    used = memory(sharded, timed.timeline, backend, timed.rows)
    good = goodput(plan, timed.step.mfu)
    return CostedPlan(
        sharded=sharded,
        memory=used,
        step=timed.step,
        slowest=timed.slowest,
        timed=timed,
        axes=_axes(sharded, groups),
        limits=_limits(plan, timed, used),
        goodput=good,
        run=whole_run(plan, timed.step.time_s, good.runtime),
        model=ModelFacts(
            name=plan.model.name,
            params=plan.model.parameters,
            active_params=plan.model.active_parameters,
            trained_params=plan.model.trained_parameters,
            model_flops_per_token=model_flops_per_token(plan.model, plan.batch.sequence_tokens),
        ),
        cluster=ClusterFacts(
            nodes=plan.cluster.count,
            chips=plan.cluster.chips,
            devices=plan.cluster.devices,
            chip=plan.cluster.chip.name,
        ),
        backend=backend,
    )


def _axes(sharded: Sharded, groups: dict[str, DeviceGroup]) -> tuple[AxisFacts, ...]:
    """Return facts on each mesh axis, outermost first, and on the axes of views (other factorizations of axes)."""
    mesh = sharded.plan.mesh
    meshes = [(None, mesh.axes), *((f"of {', '.join(v.of)} for {', '.join(v.regions)}", v.axes) for v in mesh.views)]
    return tuple(
        AxisFacts(name=a.name, size=a.size, stride=a.stride, level=groups[a.name].level, view=view)
        for view, axes in meshes
        for a in axes
    )


def _limits(plan: Plan, timed: Timed, used: Memory) -> Limits:
    """Return what limits the plan: memory if the plan does not fit, else the largest part of the step."""
    step = timed.step
    worst = used.worst
    if worst.per_device_gib.total > used.capacity_gib:
        return Limits(bound_by="memory", what=f"stage {worst.stage} needs {worst.per_device_gib.total:.1f} GiB")
    parts = {
        "compute": step.compute_s + step.recompute_s,
        "communication": step.exposed_comm_s,
        "bubble": step.bubble_s,
        "optimizer": step.optimizer_s,
    }
    bound = max(parts, key=lambda name: parts[name])
    share = parts[bound] / step.time_s
    what = f"{share:.0%} of the step"
    if bound != "communication" and step.exposed_comm_s > 0:
        stage, each = timed.rank_classes[timed.slowest], zip(timed.rows, timed.exposed, strict=True)
        row, _ = max(((r, exposed_s) for r, exposed_s in each if r.stage == stage), key=lambda pair: pair[1])
        group = timed.groups[row.axes]
        what += f"; the largest exposed transfer is {row.op} over {row.axis} on {group.level}"
        full = group.slowest
        what += f", which saturates {full.name}" if full is not None and full.name != group.level else ""
    return Limits(bound_by=bound, what=what)
