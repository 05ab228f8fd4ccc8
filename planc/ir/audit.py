"""The result of `planc audit` (`planc.audit/1`): predicted and observed collectives, memory and FLOPs of a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from planc.diag.fast_dataclass import dataclass

Key = tuple[str, str, str]
"""(operation, mesh axis, dtype)"""


@dataclass(frozen=True)
class Total:
    """Calls per device and optimizer step (`count`), and their `bytes`: the larger of input and output of each call."""

    count: int = 0
    bytes: int = 0

    def to_json(self) -> dict[str, int]:
        return {"count": self.count, "bytes": self.bytes}


Totals = dict[Key, Total]


@dataclass(frozen=True)
class AuditOptions:
    """Options of an audit."""

    world_scale: int | None = None
    """Trace with fewer data-parallel ranks, on at most this many devices; None: the plan's own."""
    topology: str | None = None
    """Compile for these TPUs, such as `v5p:4x4x4`; None: the plan's own."""
    timeout_s: float | None = None
    """Time limit (s) of the compiler; None for the backend's default."""
    source: Mapping[str, Any] | str | None = None
    """A config's fields, or `package.module:function`: the module to audit instead of the backend's own."""
    show: Callable[[str], None] = lambda text: None
    """Called with a line of text after each part of the audit."""


@dataclass(frozen=True, kw_only=True)
class AuditRow:
    """Predicted and observed calls of one collective over one mesh axis on one pipeline stage."""

    op: str
    axis: str
    dtype: str
    stage: int
    predicted: Total
    observed: Total

    @property
    def agrees(self) -> bool:
        return self.predicted == self.observed

    @property
    def difference(self) -> Total:
        """Observed minus predicted calls and bytes."""
        return Total(self.observed.count - self.predicted.count, self.observed.bytes - self.predicted.bytes)

    def to_json(self) -> dict[str, Any]:
        return {
            "op": self.op,
            "axis": self.axis,
            "dtype": self.dtype,
            "stage": self.stage,
            "predicted": self.predicted.to_json(),
            "observed": self.observed.to_json(),
            "difference": self.difference.to_json(),
        }


@dataclass(frozen=True, kw_only=True)
class PeakMemory:
    """Predicted and observed peak bytes of a step on one class of equivalent ranks, without the runtime's memory."""

    stage: int
    predicted_bytes: float
    observed_bytes: float

    @property
    def relative(self) -> float:
        """Relative error of the prediction; negative when it is too low."""
        return self.predicted_bytes / self.observed_bytes - 1

    def to_json(self) -> dict[str, float]:
        return {
            "stage": self.stage,
            "predicted_bytes": self.predicted_bytes,
            "observed_bytes": self.observed_bytes,
            "relative": self.relative,
        }


@dataclass(frozen=True, kw_only=True)
class Placed:
    """Result of checking each rank's sequences and shards against its coordinates in the plan's mesh."""

    ranks: int = 0
    """Number of ranks that were checked."""
    otherwise: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Differences, with the ranks: `sequences`, `tokens of sequences`, or `shard over DIMENSION`."""

    def to_json(self) -> dict[str, Any]:
        return {"ranks": self.ranks, "otherwise": {what: list(ranks) for what, ranks in self.otherwise.items()}}


@dataclass(frozen=True, kw_only=True)
class AxisWire:
    """Predicted and observed bytes that one device sends over one mesh axis in a step, in all operations."""

    axis: str
    predicted_bytes: int
    observed_bytes: int

    @property
    def relative(self) -> float:
        """Relative error of the prediction; negative when it is too low."""
        if self.observed_bytes == 0:
            return 0.0 if self.predicted_bytes == 0 else float("inf")
        return self.predicted_bytes / self.observed_bytes - 1

    def to_json(self) -> dict[str, Any]:
        relative = self.relative
        return {
            "axis": self.axis,
            "predicted_bytes": self.predicted_bytes,
            "observed_bytes": self.observed_bytes,
            "relative": relative if relative != float("inf") else None,
        }


FLOPS_WITHIN = 0.02
"""Largest relative error allowed for the FLOPs of matmuls."""


@dataclass(frozen=True, kw_only=True)
class LargestProduct:
    """One matmul in a compiled program: its FLOPs in a step, its result, and the name of the operation that made it."""

    flops: int
    result: str
    operation: str

    def to_json(self) -> dict[str, Any]:
        return {"flops": self.flops, "result": self.result, "operation": self.operation}


@dataclass(frozen=True, kw_only=True)
class MatmulFlops:
    """Predicted and observed FLOPs of all matmuls of a rank of pipeline stage `stage` in a step. Kernels that state no
    FLOPs, such as those of attention, are on neither side."""

    stage: int
    predicted_flops: float
    observed_flops: float
    largest: tuple[LargestProduct, ...] = ()
    """The largest matmuls of a compiled program, in descending order."""

    @property
    def relative(self) -> float:
        """Relative error of the prediction; negative when it is too low."""
        if not self.observed_flops:
            return float(self.predicted_flops > 0)
        return self.predicted_flops / self.observed_flops - 1

    @property
    def agrees(self) -> bool:
        return abs(self.relative) <= FLOPS_WITHIN

    def to_json(self) -> dict[str, Any]:
        return {
            "stage": self.stage,
            "predicted_flops": self.predicted_flops,
            "observed_flops": self.observed_flops,
            "relative": self.relative,
            "largest": [one.to_json() for one in self.largest],
        }


@dataclass(frozen=True, kw_only=True)
class HostBytes:
    """Predicted and observed bytes in a step, sent between a device and its host or stored in host memory."""

    what: str
    """`resting`, `to host` or `from host`."""
    predicted_bytes: int
    observed_bytes: int
    asynchronous_bytes: int = 0
    """Bytes of transfers that overlap with the program."""

    def to_json(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "predicted_bytes": self.predicted_bytes,
            "observed_bytes": self.observed_bytes,
            "asynchronous_bytes": self.asynchronous_bytes,
        }


@dataclass(frozen=True, kw_only=True)
class LiveBuffer:
    """One buffer in a device's memory at the peak of a compiled program."""

    bytes: int
    dtype: str
    shape: tuple[int, ...]
    tensor: str
    """Names of the plan's tensors with these sizes, joined by `or`; "" for none."""
    sentence: str
    """The sentence that determines its layout; "" for none."""
    operation: str
    """The name of the operation that made it; "" if the compiler gives none."""

    def to_json(self) -> dict[str, Any]:
        return {
            "bytes": self.bytes,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "tensor": self.tensor,
            "sentence": self.sentence,
            "operation": self.operation,
        }


@dataclass(frozen=True, kw_only=True)
class OperationOverlap:
    """One collective over one mesh axis in a compiled program: how much of it overlaps with compute."""

    op: str
    axis: str
    sent_bytes: int
    """Bytes that one device sends in a step."""
    asynchronous_bytes: int
    """Bytes of transfers that overlap with the program."""
    cycles_meanwhile: int
    """The compiler's estimate of a device's cycles between starts and dones in a step; for ranking only."""
    predicted_s: float
    """Seconds of a step in the cost model."""
    exposed_s: float
    """The part of these seconds that is exposed."""

    def to_json(self) -> dict[str, Any]:
        return {
            "op": self.op,
            "axis": self.axis,
            "sent_bytes": self.sent_bytes,
            "asynchronous_bytes": self.asynchronous_bytes,
            "cycles_meanwhile": self.cycles_meanwhile,
            "predicted_s": self.predicted_s,
            "exposed_s": self.exposed_s,
        }


@dataclass(frozen=True, kw_only=True)
class CompilerReport:
    """A compiler's report on a program that was compiled and not run."""

    topology: str
    fits: bool
    predicted_to_fit: bool
    capacity_bytes: float
    """Memory of one device (bytes), from the plan's hardware file."""
    message: str = ""
    """The compiler's refusal, if any."""
    cycles: int = 0
    """The compiler's estimate of a step's compute cycles, without transfers; for ranking only."""
    compute_s: float = 0.0
    """Predicted seconds of compute in a step."""
    clock_hz: float = 0.0
    """Clock of the chip's cores; 0 if it is not published."""
    on_torus: bool | None = None
    """True when the mesh's axes follow the torus' links."""
    compile_s: float = 0.0
    options: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    host: tuple[HostBytes, ...] = ()
    """Host memory, if the plan offloads to it."""
    live_bytes: int = 0
    """Bytes of all live buffers at the peak, from the order of the program's instructions; 0 if it has no schedule."""
    buffers: tuple[LiveBuffer, ...] = ()
    """The largest live buffers at the peak, in descending order."""
    overlap: tuple[OperationOverlap, ...] = ()
    """Each operation over each axis."""

    @property
    def cycles_s(self) -> float:
        """Return the seconds of `cycles` at the chip's clock; 0 if the clock is not known."""
        return self.cycles / self.clock_hz if self.clock_hz else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "topology": self.topology,
            "fits": self.fits,
            "predicted_to_fit": self.predicted_to_fit,
            "capacity_bytes": self.capacity_bytes,
            "message": self.message,
            "estimated_cycles": self.cycles,
            "compute_s": self.compute_s,
            "clock_hz": self.clock_hz,
            "on_torus": self.on_torus,
            "compile_s": self.compile_s,
            "options": self.options,
            "versions": self.versions,
            "host": [h.to_json() for h in self.host],
            "live_bytes": self.live_bytes,
            "buffers": [b.to_json() for b in self.buffers],
            "overlap": [o.to_json() for o in self.overlap],
        }


AXES_WITHIN = 0.08
"""Largest relative error allowed for the bytes of an axis if a compiler chooses the collectives."""
SMALL_AXIS = 0.005
"""Share of all bytes below which an axis is shown but not judged: scalars, gradients of norms."""


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Predicted and observed collectives and memory of a plan, for every class of equivalent ranks.

    `normalisations` are the changes to the plan for tracing, in words. `unparsed` are names of observed calls that the
    audit does not know; it fails if there are any. If a compiler chooses the collectives, `compiler` is its report,
    bytes are those sent, and the audit compares mesh axes (`wire`) instead of `rows`.
    """

    plan: str
    plan_sha256: str
    target: str
    devices: int
    traced_devices: int
    rows: tuple[AuditRow, ...]
    memory: tuple[PeakMemory, ...] = ()
    normalisations: tuple[str, ...] = ()
    unparsed: tuple[str, ...] = ()
    placed: Placed = Placed()
    wire: tuple[AxisWire, ...] = ()
    compiler: CompilerReport | None = None
    matmuls: tuple[MatmulFlops, ...] = ()

    @property
    def ok(self) -> bool:
        if not all(m.agrees for m in self.matmuls):
            return False
        if self.compiler is None:
            return not self.unparsed and not self.placed.otherwise and all(row.agrees for row in self.rows)
        near = all(abs(w.relative) <= AXES_WITHIN for w in self.judged)
        return not self.unparsed and near and self.compiler.fits == self.compiler.predicted_to_fit

    @property
    def judged(self) -> tuple[AxisWire, ...]:
        return judged(self.wire)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON of `planc.audit/1`."""
        return {
            "format": "planc.audit/1",
            "plan": self.plan,
            "plan_sha256": self.plan_sha256,
            "target": self.target,
            "devices": self.devices,
            "traced_devices": self.traced_devices,
            "rows": [row.to_json() for row in self.rows],
            "memory": [m.to_json() for m in self.memory],
            "matmuls": [m.to_json() for m in self.matmuls],
            "normalisations": list(self.normalisations),
            "unparsed": list(self.unparsed),
            **({} if self.compiler else {"placed": self.placed.to_json()}),
            **({"wire": [w.to_json() for w in self.wire]} if self.compiler else {}),
            **({"compiler": self.compiler.to_json()} if self.compiler else {}),
            "ok": self.ok,
        }


def judged(wire: tuple[AxisWire, ...]) -> tuple[AxisWire, ...]:
    """Return the axes with more than SMALL_AXIS of all predicted or observed bytes; others are only shown."""
    predicted, observed = sum(w.predicted_bytes for w in wire), sum(w.observed_bytes for w in wire)
    large = (w.predicted_bytes > SMALL_AXIS * predicted or w.observed_bytes > SMALL_AXIS * observed for w in wire)
    return tuple(w for w, is_large in zip(wire, large, strict=True) if is_large)


def compared(stage: int, predicted: Totals, observed: Totals) -> tuple[AuditRow, ...]:
    """Return one row for every operation, mesh axis and dtype in `predicted` or `observed`, sorted.

    Both arguments are of pipeline stage `stage`. If one lacks an operation, its count and bytes are 0 there.
    """
    return tuple(
        AuditRow(
            op=op,
            axis=axis,
            dtype=dtype,
            stage=stage,
            predicted=predicted.get((op, axis, dtype), Total()),
            observed=observed.get((op, axis, dtype), Total()),
        )
        for op, axis, dtype in sorted({*predicted, *observed})
    )


def differences(rows: tuple[AuditRow, ...]) -> list[str]:
    """Return a line of text, with both counts and bytes, for each row whose prediction and observation differ."""
    return [
        f"stage {r.stage}: {r.op} over {r.axis} in {r.dtype}: predicted {r.predicted.count} calls and "
        f"{r.predicted.bytes} bytes, observed {r.observed.count} and {r.observed.bytes}"
        for r in rows
        if not r.agrees
    ]
