"""Breakdown of a step's seconds: each part has a name, a reason, and the sentence of the plan that causes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from planc.costing.compute.quantize import s_per_flop
from planc.costing.compute.section import host_s, op_s, table_for
from planc.costing.costed import CostedPlan
from planc.costing.machine.collective_time import collective_table, latency_of_call_s
from planc.costing.machine.group import device_group
from planc.costing.step.span_names import optimizer_cause, transfer_words
from planc.costing.step.step_time import copies_run
from planc.costing.step.transfers import STEP
from planc.diag.fast_dataclass import dataclass
from planc.ir.base import Cause, Value
from planc.ir.hardware import LIBRARIES
from planc.ir.op_tables import SIZES
from planc.ir.report import TimedCollective
from planc.ir.sharding import OpSharding, Sharded
from planc.ir.updates import updates_on_host
from planc.sharding.recompute import replay
from planc.sharding.stage_assignment import microbatches_each


@dataclass(frozen=True, kw_only=True)
class Seconds(Value):
    """A part of the step time of the slowest pipeline rank. `part` is the part of the report that contains it."""

    part: str
    name: str
    seconds: float
    why: str
    cause: Cause | None = None
    formula: str = ""
    """How the seconds of a transfer come about: calls x (bytes / rate + latency), and the share that is exposed."""


def explain(costed: CostedPlan) -> tuple[Seconds, ...]:
    """Return the parts of the step time of `costed`, which sum to it, in the report's order and then the largest first.

    >>> [(s.part, s.name, f"{s.seconds:.2f} s") for s in explain(costed)][:2]
    [('compute', 'matmul of ffn', '2.80 s'), ('compute', 'matmul of projection', '0.60 s')]
    """
    found = [*_compute(costed), *_exposed(costed), *_seconds_beside_ops(costed)]
    order = list(dict.fromkeys(s.part for s in found))
    shown = [s for s in found if s.seconds > 0]
    return tuple(sorted(shown, key=lambda s: (order.index(s.part), -s.seconds)))


def host_wait_s(costed: CostedPlan) -> float:
    """Return the seconds of the step of `costed` in which the slowest rank's device waits for the host to launch ops.

    >>> host_wait_s(costed)  # at data-sheet rates a launch takes no time
    0.0
    """
    return sum(s.seconds for s in _compute(costed) if s.name == HOST)


def _compute(costed: CostedPlan) -> Iterator[Seconds]:
    """Yield the seconds of ops, summed by kind and, for matmuls, by region (such as ffn); recompute is separate."""
    sharded, plan = costed.sharded, costed.sharded.plan
    chip = plan.cluster.chip
    done: dict[str, float] = {}
    again: dict[str, float] = {}
    tables: dict[str, dict[str, None]] = {}
    for section, copies in copies_run(sharded, costed.slowest).items():
        ops = sharded.ops.get(section, ())
        names = set(replay(plan, section).ops) if section in plan.model.blocks else set()
        times = microbatches_each(plan) * copies
        for o in ops:
            what = f"{o.op.kind} of {o.op.region}" if o.op.kind == "matmul" else o.op.kind
            tables.setdefault(what, {})[table_for(sharded, o, chip) or _library(sharded, o)] = None
            forward, backward = op_s(sharded, o, chip), op_s(sharded, o, chip, backward=True)
            done[what] = done.get(what, 0.0) + times * (forward + backward)
            if o.op.name in names:
                again[what] = again.get(what, 0.0) + times / plan.recompute.every * forward
        if ops:
            waits, waits_again = host_s(sharded, section, chip)
            done[HOST] = done.get(HOST, 0.0) + times * waits
            again[HOST] = again.get(HOST, 0.0) + times * waits_again
    for what, spent in done.items():
        why = WAITS if what == HOST else f"forward and backward of every microbatch{_measured(tables[what])}"
        yield Seconds(part="compute", name=what, seconds=spent, why=why)
    for what, spent in again.items():
        why = WAITS if what == HOST else f"run again in the backward instead of kept{_measured(tables[what])}"
        yield Seconds(part="recompute", name=what, seconds=spent, why=why, cause=plan.recompute.cause)


def _measured(tables: Iterable[str]) -> str:
    """Return a clause that names the tables of measured rates used, or the library that ran matmuls; "" for neither."""
    named = [f"the table of {table}" if table.split()[0] in SIZES else table for table in tables if table]
    return f", by {' and '.join(named)}" if named else ""


def _library(sharded: Sharded, o: OpSharding) -> str:
    """Return in words the library that runs matmul `o` and the rate at which large ones run; "" for other ops."""
    if o.op.kind != "matmul":
        return ""
    rate = 1 / s_per_flop(sharded, o.op, sharded.plan.cluster.chip)
    return f"{LIBRARIES[sharded.stack.matmuls]} at up to {rate / 1e12:.3g} TFLOP/s"


HOST = "the host"
WAITS = "kernels are done before the host asks for the next"


def _exposed(costed: CostedPlan) -> Iterator[Seconds]:
    """Yield the exposed seconds of collectives, summed by operation, axis, content, phase and sentence of the plan."""
    groups: dict[tuple[str, str, str, str, Cause | None], list[TimedCollective]] = {}
    for r in costed.collectives:
        if r.row.stage == costed.slowest and r.exposed_s > 0:
            key = (r.row.op, r.row.axis, r.row.carries, r.row.phase, r.row.cause)
            groups.setdefault(key, []).append(r)
    for (_, _, carries, _, cause), rows in groups.items():
        total, exposed = sum(r.time_s for r in rows), sum(r.exposed_s for r in rows)
        yield Seconds(
            part="exposed communication",
            name=transfer_words(r.row for r in rows),
            seconds=exposed,
            why=_exposure_text(carries, rows[0].level, total, exposed) + _measured(_tables_of(costed, rows)),
            cause=cause,
            formula=_formula(costed, rows),
        )


def _formula(costed: CostedPlan, rows: Iterable[TimedCollective]) -> str:
    """Return the exposed seconds of `rows` as a sum of `SHARE of CALLS x (BYTES / RATE + LATENCY) + CALLS x LAUNCH`,
    and how the shares come about."""
    terms: dict[tuple[str, str, str], float] = {}
    reasons: dict[str, None] = {}
    for r in rows:
        row, group = r.row, costed.timed.groups[r.row.axes]
        one_s = r.time_s / row.count - group.call_s
        latency_s = min(one_s, latency_of_call_s(row.op, row.buffer_bytes, group))
        sent, sent_s = row.wire_bytes / row.count, one_s - latency_s
        moved = f"{sent / 1e6:.6g} MB / {sent / sent_s / 1e9:.6g} GB/s + " if sent_s > 1e-6 * one_s else ""
        share = (r.exposed_s / row.count - group.call_s) / one_s
        of = f"{share:.4%} of " if share < 1 - 1e-9 else ""
        launch = f"{group.call_s * 1e6:.6g} us of launch" if group.call_s else ""
        term = of, f"({moved}{(latency_s if moved else one_s) * 1e6:.6g} us)", launch
        terms[term] = terms.get(term, 0.0) + row.count
        if of:
            reasons |= dict.fromkeys(_hidden_texts(costed, r))
    calls = [
        f"{of}{n:.6g} x {call}" + f" + {n:.6g} x {launch}" * bool(launch) for (of, call, launch), n in terms.items()
    ]
    return "; ".join([" + ".join(calls), *reasons])


def _hidden_texts(costed: CostedPlan, r: TimedCollective) -> Iterator[str]:
    """Yield how the exposed share of a transfer of state comes about; nothing for activations."""
    cost, row, contention = costed.timed.cost, r.row, costed.sharded.plan.cluster.chip.contention
    section = row.section if row.section in cost.load else STEP
    found = cost.hiding.get((row.per if cost.times > 1 else "step", row.phase != "forward", section))
    if found is None or row.carries not in ("param", "grad"):
        return
    bare_s = max(found.total_s - found.cover_s, found.ends_s)
    why = "at the ends" if bare_s == found.ends_s else "without compute beside them"
    yield (
        f"of {found.total_s * 1e3:.6g} ms of transfers beside {found.cover_s * 1e3:.6g} ms of compute,"
        f" {bare_s * 1e3:.6g} ms are {why}, and each of the rest slows the compute by {contention:.6g} of its time"
    )


def _tables_of(costed: CostedPlan, rows: Iterable[TimedCollective]) -> dict[str, None]:
    """Return the names of the tables of measured rates that apply to the collectives `rows`; "" stands for no table."""
    plan = costed.sharded.plan
    found: dict[str, None] = {}
    for r in rows:
        table = collective_table(r.row.op, device_group(plan.mesh, plan.cluster, r.row.axes)) if r.row.axes else None
        found[f"{table.op} over {table.members}" if table else ""] = None
    return found


def _exposure_text(carries: str, level: str, total: float, exposed: float) -> str:
    if exposed >= 0.999 * total:
        waits = "the next op waits for it" if carries == "activation" else "nothing runs beside it"
        return f"{waits}, over {level}"
    return f"{1 - exposed / total:.0%} of it runs beside compute, over {level}"


def _seconds_beside_ops(costed: CostedPlan) -> Iterator[Seconds]:
    step, plan = costed.step, costed.sharded.plan
    if plan.split is not None:
        ranks, microbatches = plan.pipeline, plan.microbatches
        yield Seconds(
            part="bubble",
            name=f"waiting for other stages ({plan.split.schedule})",
            seconds=step.bubble_s,
            why=f"{ranks} ranks, {microbatches} microbatches, {plan.split.chunks} stages a rank",
            cause=plan.split.cause,
        )
    muon = plan.optimizer.name == "muon"
    why = "makes every matrix of the blocks orthogonal" if muon else "reads and writes every byte of its state once"
    yield Seconds(
        part="optimizer", name=plan.optimizer.name, seconds=step.optimizer_s, why=why, cause=optimizer_cause(plan)
    )
    for offload in plan.offloads[:1]:
        on_host = updates_on_host(costed.sharded)
        why = "the host updates its state" if on_host else "the way to the host is slower than what runs beside it"
        yield Seconds(
            part="offload", name="state and activations", seconds=step.offload_s, why=why, cause=offload.cause
        )
    why = "starting each microbatch's stages"
    yield Seconds(part="overhead", name="launches", seconds=step.overhead_s, why=why)
