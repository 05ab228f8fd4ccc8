"""Audits one plan: compiles its step and compares the result with the predictions."""

from __future__ import annotations

from collections import Counter

from planc.backends.xla.analysis.mesh_factors import atoms, parts
from planc.backends.xla.analysis.offload import resting_bytes, transferred_bytes
from planc.backends.xla.analysis.slices import ranks_over_slices
from planc.backends.xla.audit.buffer_names import largest
from planc.backends.xla.audit.compile import TIMEOUT_S, CompilerAnswer, compiled
from planc.backends.xla.audit.hlo import HloError, parse
from planc.backends.xla.audit.inventory import Direction, FoundCollective, FoundProduct, Inventory, inventory
from planc.backends.xla.audit.live_buffers import Fullest, fullest
from planc.backends.xla.audit.predict import by_axis, matmul_flops, predicted
from planc.backends.xla.audit.topology import topology_of
from planc.checks import check_plan
from planc.costing import cost_plan
from planc.costing.memory.peak import GIB
from planc.diag import Diagnostic, PlanError
from planc.ir.audit import (
    Audit,
    AuditOptions,
    AxisWire,
    CompilerReport,
    HostBytes,
    Key,
    LargestProduct,
    MatmulFlops,
    OperationOverlap,
    PeakMemory,
    Total,
    Totals,
    compared,
)
from planc.ir.plan import Plan
from planc.ir.sharding import Sharded
from planc.lowering import load_backend, lower_plan

BYTES_SENT = "bytes are those that one device sends in a step, on average, with ring algorithms"
PROMOTED = "virtual CPU devices send bf16 as fp32; predicted so (rule promote_bf16)"
SLICED = "virtual CPU devices reduce-scatter by all-reduce and slice; predicted so (rule all_reduce_then_slice)"
KERNELS = "FLOPs are those of matmuls outside kernels: attention's and grouped matmuls' kernels state none"
CLOCK_HZ = {"v4": 1.05e9, "v5e": 1.5e9, "v5p": 1.75e9}
"""Clocks by chip: peak bf16 FLOP/s of the data sheet, over the FLOPs of a cycle: 4 matrix units of 128 x 128
multiply-adds in each core, of which v4 and v5p have two (docs.cloud.google.com/tpu/docs/system-architecture-tpu-vm)."""
LARGEST = 3
"""Number of matmuls that an audit lists."""
OFF_TORUS = "jax knows no way to lay this mesh along the torus: devices in their own order"


def audit(plan: Plan, options: AuditOptions) -> Audit:
    """Return predicted against compiled figures of `plan`. Raises PlanError if the plan cannot be lowered, if it is not
    compiled in time, or if the compiled text cannot be parsed.

    `options.topology` may only name the plan's own topology; the plan is compiled for that, or for virtual CPU devices
    if the plan's cluster is no torus of TPUs. `options.world_scale` is refused: the compiler handles any size.
    """
    if options.world_scale is not None:
        message = "an audit on xla compiles the plan at its own size: leave --world-scale out"
        raise PlanError([Diagnostic("E0902", message, plan.mesh.cause.span)])
    program = lower_plan(check_plan(plan), "xla")
    where = topology_of(plan, options.topology)
    answer = compiled(plan, where, TIMEOUT_S if options.timeout_s is None else options.timeout_s)
    return audit_of_answer(program.sharded, answer)


def audit_of_answer(sharded: Sharded, answer: CompilerAnswer) -> Audit:
    """Return the audit of the compiler's `answer` against the predictions for `sharded`."""
    plan = sharded.plan
    found = _read(plan, answer)
    totals = predicted(sharded)
    observed = _totals(found.found)
    return Audit(
        plan=plan.name,
        plan_sha256=plan.sha256,
        target="xla",
        devices=plan.mesh.devices,
        traced_devices=plan.mesh.devices,
        rows=() if answer.refused else compared(0, totals, observed),
        memory=_memory(sharded, answer),
        normalisations=_normalisations(plan, answer),
        wire=() if answer.refused else _wire(totals, observed),
        matmuls=() if answer.refused else (_matmuls(sharded, answer, found.multiplied()),),
        compiler=_compiler(sharded, answer, found),
    )


def _read(plan: Plan, answer: CompilerAnswer) -> Inventory:
    """Return the collectives of the compiled program; none if it does not fit in memory (`answer.refused`). Raises
    PlanError for text that cannot be parsed."""
    if answer.refused:
        return Inventory()
    try:
        return inventory(answer.hlo, {a.name: a.size for a in atoms(plan)}, ranks_over_slices(plan))
    except HloError as error:
        message = f"the compiled program is not understood: {error}"
        help = "nothing is claimed about it; this version of jax may write HLO in another form"
        raise PlanError([Diagnostic("E0904", message, plan.mesh.cause.span, help=help)]) from None


def _totals(found: list[FoundCollective]) -> Totals:
    calls: Counter[Key] = Counter()
    sent: dict[Key, float] = {}
    for f in found:
        key = f.op, f.axis, f.dtype
        calls[key] += f.count
        sent[key] = sent.get(key, 0.0) + f.wire_bytes
    return {key: Total(calls[key], round(bytes)) for key, bytes in sent.items()}


def _wire(totals: Totals, observed: Totals) -> tuple[AxisWire, ...]:
    expected, seen = by_axis(totals), by_axis(observed)
    return tuple(
        AxisWire(axis=axis, predicted_bytes=expected.get(axis, 0), observed_bytes=seen.get(axis, 0))
        for axis in sorted({*expected, *seen})
    )


def _matmuls(sharded: Sharded, answer: CompilerAnswer, found: list[FoundProduct]) -> MatmulFlops:
    """Return the predicted and the compiled FLOPs of matmuls, with the largest matmuls of the program."""
    rows = ((f.flops, f"{f.shape.dtype}{list(f.shape.dims)}", f.source) for f in found[:LARGEST])
    return MatmulFlops(
        stage=0,
        predicted_flops=matmul_flops(sharded, virtual=not answer.topology),
        observed_flops=sum(f.flops for f in found),
        largest=tuple(LargestProduct(flops=n, result=made, operation=source) for n, made, source in rows),
    )


def _memory(sharded: Sharded, answer: CompilerAnswer) -> tuple[PeakMemory, ...]:
    """Return the predicted and the compiled memory peak. () on virtual devices, which have no memory plan, and if the
    compiler refuses the program and does not say how much memory it needs."""
    if not answer.topology or answer.peak_bytes is None:
        return ()
    return (PeakMemory(stage=0, predicted_bytes=predicted_bytes(sharded), observed_bytes=answer.peak_bytes),)


def predicted_bytes(sharded: Sharded) -> float:
    """Return the bytes of tensors on the fullest pipeline rank of `sharded`, as `planc check --target xla` predicts
    them, without the reserve."""
    stages = cost_plan(sharded, backend=load_backend("xla")).memory.stages
    return max(stage.per_device_gib.tensors for stage in stages) * GIB


def _normalisations(plan: Plan, answer: CompilerAnswer) -> tuple[str, ...]:
    if not answer.topology:
        sliced = any(plan.store(noun) for noun in ("grads", "optimizer"))
        narrow = plan.precision.compute != "fp32"
        return tuple(s for s in (BYTES_SENT, PROMOTED if narrow else "", SLICED if sliced else "", KERNELS) if s)
    return (BYTES_SENT, KERNELS, *([] if answer.on_torus else [OFF_TORUS]))


def _compiler(sharded: Sharded, answer: CompilerAnswer, found: Inventory) -> CompilerReport:
    chip = sharded.plan.cluster.chip
    capacity = chip.memory_bytes / chip.devices
    room = capacity - chip.runtime_bytes / chip.devices
    moment = _fullest(answer)
    step = cost_plan(sharded, backend=load_backend("xla")).step
    return CompilerReport(
        topology=answer.topology or "virtual CPU devices",
        fits=not answer.refused,
        predicted_to_fit=not answer.topology or predicted_bytes(sharded) <= room,
        capacity_bytes=capacity,
        message=answer.refused,
        cycles=found.cycles,
        compute_s=step.compute_s + step.recompute_s + step.optimizer_s,
        clock_hz=CLOCK_HZ.get(chip.name, 0.0) if answer.topology else 0.0,
        on_torus=answer.on_torus,
        compile_s=answer.compile_s,
        options=answer.options,
        versions=answer.versions,
        host=_host(sharded, answer, found) if answer.topology and sharded.plan.offloads and not answer.refused else (),
        live_bytes=moment.bytes if moment else 0,
        buffers=largest(sharded, moment.buffers) if moment else (),
        overlap=_overlap(sharded, found.found) if answer.topology else (),
    )


def _overlap(sharded: Sharded, found: list[FoundCollective]) -> tuple[OperationOverlap, ...]:
    """Return the overlap of each compiled operation over each axis, most bytes first, with the cost model's seconds."""
    timed: dict[tuple[str, str], tuple[float, float]] = {}
    for c in cost_plan(sharded, backend=load_backend("xla")).collectives:
        key = c.row.op, "+".join(parts(sharded.plan, c.row.axes))
        whole, exposed = timed.get(key, (0.0, 0.0))
        timed[key] = whole + c.time_s, exposed + c.exposed_s
    rows = []
    for op, axis in dict.fromkeys((f.op, f.axis) for f in found):
        mine = [f for f in found if (f.op, f.axis) == (op, axis)]
        whole, exposed = timed.get((op, axis), (0.0, 0.0))
        rows.append(
            OperationOverlap(
                op=op,
                axis=axis,
                sent_bytes=round(sum(f.wire_bytes for f in mine)),
                asynchronous_bytes=round(sum(f.wire_bytes for f in mine if f.asynchronous)),
                cycles_meanwhile=sum(f.cycles_meanwhile * f.count for f in mine),
                predicted_s=whole,
                exposed_s=exposed,
            )
        )
    return tuple(sorted(rows, key=lambda r: -r.sent_bytes))


def _fullest(answer: CompilerAnswer) -> Fullest | None:
    """Return the memory peak of the compiled program. None if the compiler refused it, on virtual devices (no
    schedule), and if the text cannot be parsed: the audit is valid without a peak."""
    if answer.refused or not answer.topology:
        return None
    try:
        return fullest(parse(answer.hlo))
    except HloError:
        return None


def _host(sharded: Sharded, answer: CompilerAnswer, found: Inventory) -> tuple[HostBytes, ...]:
    directions: dict[Direction, float] = dict(zip(("to_host", "from_host"), transferred_bytes(sharded), strict=True))
    moved = (
        HostBytes(
            what=direction.replace("_", " "),
            predicted_bytes=round(expected),
            observed_bytes=found.transferred_bytes(direction),
            asynchronous_bytes=sum(
                m.payload_bytes * m.count for m in found.transfers if m.direction == direction and m.asynchronous
            ),
        )
        for direction, expected in directions.items()
    )
    resting = HostBytes(what="resting", predicted_bytes=round(resting_bytes(sharded)), observed_bytes=answer.host_bytes)
    return resting, *moved
