"""Audits one plan: traces one rank of each pipeline stage, and compares the traces with the prediction."""

from __future__ import annotations

from planc.backends.common.shrunk import shrunk, size_changes
from planc.backends.cuda.audit.predict import predicted
from planc.backends.cuda.audit.traced import Traced
from planc.checks import assume_checked, check_plan
from planc.costing import cost_plan
from planc.costing.memory.peak import GIB
from planc.costing.step.step_products import step_flops
from planc.diag import Diagnostic, PlanError
from planc.ir.audit import Audit, AuditOptions, MatmulFlops, PeakMemory, Placed, compared
from planc.ir.backend import run_by
from planc.ir.plan import Plan
from planc.ir.sharding import Sharded
from planc.lowering import load_backend, lower_plan


def audit(plan: Plan, options: AuditOptions) -> Audit:
    """Returns the predicted and observed collectives and memory of `plan`, on one rank of each pipeline stage.

    Raises PlanError if the plan cannot be lowered, or if `options` sets a compiler's topology or timeout.
    """
    from planc.backends.cuda.audit.pool import traces  # processes, which only an audit needs

    if options.topology is not None or options.timeout_s is not None:
        message = "an audit on cuda asks no compiler: leave --topology and --timeout-s out"
        raise PlanError([Diagnostic("E0902", message, plan.mesh.cause.span)])
    small = plan if options.world_scale is None else shrunk(plan, options.world_scale)
    checked = check_plan(plan)
    program = lower_plan(
        checked if small is plan else assume_checked(small), "cuda", version="installed"
    )  # fewer ranks than the cluster
    sharded = program.sharded
    traced = traces(program, list(range(small.pipeline)), options.show, options.source)
    return Audit(
        plan=plan.name,
        plan_sha256=plan.sha256,
        target="cuda",
        devices=plan.mesh.devices,
        traced_devices=small.mesh.devices,
        rows=tuple(r for t in traced for r in compared(t.stage, predicted(sharded, t.stage), t.totals)),
        memory=_memory(sharded, traced),
        matmuls=_matmuls(sharded, traced),
        normalisations=(*size_changes(plan, small), *_counted(traced, small.microbatches)),
        unparsed=tuple(sorted({name for t in traced for name in t.unparsed})),
        placed=_placed(traced),
    )


def _placed(traced: list[Traced]) -> Placed:
    """Returns the number of checked ranks, and the ranks with tokens or shards that do not fit their coordinates."""
    wrong: dict[str, list[int]] = {}
    for what, rank in sorted(row for t in traced for row in t.misplaced):
        wrong.setdefault(what, []).append(rank)
    return Placed(ranks=sum(t.placed for t in traced), otherwise={what: tuple(ranks) for what, ranks in wrong.items()})


def _counted(traced: list[Traced], microbatches: int) -> tuple[str, ...]:
    """Returns sentences for the report about skipped microbatches and blocks; () if none were skipped."""
    counted, blocks = sorted({m for t in traced for m in t.counted}), sum(t.counted_blocks for t in traced)
    alike = "calls, bytes left behind and the most held while they ran were equal on every stage"
    said = []
    if counted:
        said.append(
            f"{microbatches - len(counted)} of {microbatches} microbatches were run; the others are counted like two "
            f"of them, whose {alike}"
        )
    if blocks:
        said.append(f"{blocks} blocks were not run; they are counted like two of the same modules, whose {alike}")
    return tuple(said)


def _memory(sharded: Sharded, traced: list[Traced]) -> tuple[PeakMemory, ...]:
    held = predicted_bytes(sharded)
    return tuple(PeakMemory(stage=t.stage, predicted_bytes=held[t.stage], observed_bytes=t.peak_bytes) for t in traced)


def _matmuls(sharded: Sharded, traced: list[Traced]) -> tuple[MatmulFlops, ...]:
    """Returns the FLOPs of matmuls on each stage; () for a model with scans, whose kernels contain most of its own."""
    if any(o.op.kind == "scan" for ops in sharded.ops.values() for o in ops):
        return ()
    run = run_by(sharded, load_backend("cuda"))
    return tuple(
        MatmulFlops(stage=t.stage, predicted_flops=step_flops(run, t.stage), observed_flops=t.flops) for t in traced
    )


def predicted_bytes(sharded: Sharded) -> tuple[float, ...]:
    """Returns the predicted peak bytes of tensors on each pipeline stage of `sharded`, without communicators and
    reserve: the numbers of `planc check --target cuda`."""
    stages = cost_plan(sharded, backend=load_backend("cuda")).memory.stages
    return tuple(stage.per_device_gib.tensors * GIB for stage in stages)
