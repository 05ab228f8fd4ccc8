"""The cost of one plan at many values of one number, such as the number of devices: `planc.sweep/1`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from planc.compare.plan_edit import NotWrittenError, read
from planc.compare.sweep_values import WORDS, Over, Varied, at
from planc.costing.elasticity import cost_on, figures
from planc.diag.diagnostic import Diagnostic
from planc.diag.errors import PlanError
from planc.diag.fast_dataclass import dataclass
from planc.driver import Examined, examine
from planc.ir.hardware import Cluster
from planc.ir.report import Memory, Step
from planc.ir.target import AnyTarget, Target
from planc.syntax import parse_text


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The figures of a plan that a sweep shows."""

    time_s: float
    mfu: float
    tokens_per_s_per_device: float
    exposed_comm_s: float
    bubble_s: float
    memory_gib: float
    """On the fullest device."""
    capacity_gib: float
    peak_tflops: float
    """Dense peak of a device (TFLOP/s) in `peak_dtype`, the reference of `mfu`."""
    peak_dtype: str


@dataclass(frozen=True, kw_only=True)
class SweepRow:
    """The plan at one value. `costs` is None if it has errors; `why` is the reason if its text cannot be written."""

    value: int
    devices: int | None = None
    target: Target | None = None
    """The target for which it is costed; None: any correct program."""
    costs: Costs | None = None
    diagnostics: tuple[Diagnostic, ...] = ()
    why: str = ""

    @property
    def ok(self) -> bool:
        """True if the plan has no errors at this value."""
        return not self.why and not self.errors

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        return tuple(d for d in self.diagnostics if d.severity == "error")


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The result of a sweep: one row for each value, in the order given."""

    file: str
    over: Over
    rows: tuple[SweepRow, ...]

    def to_json(self) -> dict[str, Any]:
        rows = [
            {
                "value": r.value,
                "devices": r.devices,
                "target": r.target,
                "ok": r.ok,
                "why": r.why or None,
                **(dict.fromkeys(NAMES) if r.costs is None else asdict(r.costs)),
                "diagnostics": [d.to_json() for d in r.diagnostics],
            }
            for r in self.rows
        ]
        return {"format": "planc.sweep/1", "file": self.file, "over": self.over.name, "rows": rows}


NAMES = tuple(Costs.__dataclass_fields__)


def sweep(
    path: Path, over: Over, *, axis: str = "", weak: bool = False, set: dict[str, int] | None = None,
    target: AnyTarget | None = None,
) -> Sweep:  # fmt: skip
    """Cost the plan in file `path` at each value of `over`, which names a number in its text.

    `axis` is the mesh axis that grows with the devices; `weak` also grows the batch (weak scaling); `set` has values of
    `let` numbers; `target` is the target of all rows, None lets each row have its default.

    Raises PlanError if the unchanged plan is invalid, NotWrittenError if the plan has no number of that name.
    """
    given = set or {}
    base = examine(path, set=given, target=target)
    if base.plan is None:
        raise PlanError(base.report.diagnostics)
    text = read(path)
    params = [s.node.words("NAME")[0].text for s in parse_text(text, "").sentences if s.verb == "let"]
    if over.name in params:
        checks = (examine(path, set={**given, over.name: value}, target=target) for value in over.values)
        rows = tuple(_row(value, checked) for value, checked in zip(over.values, checks, strict=True))
        return Sweep(file=str(path), over=over, rows=rows)
    machine = _machine_figures(base)
    if over.name in machine:
        assert base.costed is not None
        rows = tuple(_at_figure(base, value, machine[over.name]) for value in over.values)
        return Sweep(file=str(path), over=over, rows=rows)
    known = (*WORDS, *base.plan.mesh.sizes, *params, *machine)
    if over.name not in known:
        raise NotWrittenError(f"nothing is called `{over.name}`: there are {', '.join(dict.fromkeys(known))}")
    varied = Varied(text, base.plan, axis, weak)
    if over.name == "devices" or over.name not in WORDS:
        replace(varied, axis=axis if over.name == "devices" else over.name).grown()
    return Sweep(file=str(path), over=over, rows=tuple(_rows(path, varied, over, given, target)))


def _machine_figures(base: Examined) -> dict[str, Callable[[float], Cluster]]:
    """Return the figures of the machine of a plan by their names in `--over`, such as `nvlink4.bandwidth`; each gives
    the cluster with the figure at a multiple of what it is. {} for a plan with errors."""
    if base.costed is None:
        return {}
    found = dict(figures(base.costed.sharded.plan.cluster))
    return {name.replace(" ", "."): partial(_scaled, figure, name) for name, figure in found.items()}


def _scaled(figure: Callable[[float], Cluster], name: str, times: float) -> Cluster:
    """Return the cluster with the figure called `name` at `times` what it is; a latency is better where it is less."""
    return figure(1 / times if name.endswith(" latency") else times)


def _at_figure(base: Examined, percent: int, figure: Callable[[float], Cluster]) -> SweepRow:
    """Return the row of the plan `base` with a `figure` of the machine at `percent` of what it is."""
    assert base.costed is not None
    costed = cost_on(base.costed, figure(percent / 100))
    return SweepRow(
        value=percent,
        devices=base.report.devices,
        target=base.report.target,
        costs=_costs(costed.step, costed.memory),
        diagnostics=base.report.diagnostics,
    )


def _rows(
    path: Path, varied: Varied, over: Over, given: dict[str, int], target: AnyTarget | None
) -> Iterator[SweepRow]:
    for value in over.values:
        try:
            text = at(varied, over.name, value)
        except NotWrittenError as error:
            yield SweepRow(value=value, why=str(error))
        else:
            yield _row(value, examine(path, set=given, target=target, unsaved={path.resolve(): text}))


def _row(value: int, checked: Examined) -> SweepRow:
    report = checked.report
    costs = None
    if report.step is not None and report.memory is not None:
        costs = _costs(report.step, report.memory)
    return SweepRow(
        value=value, devices=report.devices, target=report.target, costs=costs, diagnostics=report.diagnostics
    )


def _costs(step: Step, memory: Memory) -> Costs:
    return Costs(
        time_s=step.time_s,
        mfu=step.mfu,
        peak_tflops=step.peak_tflops,
        peak_dtype=step.peak_dtype,
        tokens_per_s_per_device=step.tokens_per_s_per_device,
        exposed_comm_s=step.exposed_comm_s,
        bubble_s=step.bubble_s,
        memory_gib=memory.per_device_gib.total,
        capacity_gib=memory.capacity_gib,
    )
