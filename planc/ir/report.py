"""The report, `planc.report/1`: the result of `check` and `cost`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planc.diag.diagnostic import Diagnostic, has_errors
from planc.diag.fast_dataclass import dataclass
from planc.ir.base import Value
from planc.ir.collective import Collective
from planc.ir.target import Target
from planc.picture.notebook import InNotebook

FLOPS_CONVENTION = "6N + causal attention, no recompute, against the dense peak of the compute dtype"


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    name: str
    params: int
    active_params: int
    trained_params: int
    """Parameters that are not frozen."""
    model_flops_per_token: float
    flops_convention: str = FLOPS_CONVENTION


@dataclass(frozen=True, kw_only=True)
class ClusterFacts:
    nodes: int
    chips: int
    devices: int
    chip: str


@dataclass(frozen=True, kw_only=True)
class AxisFacts:
    """A mesh axis. `level` is the outermost network level that a group along it spans."""

    name: str
    size: int
    stride: int
    level: str
    view: str | None = None


@dataclass(frozen=True, kw_only=True)
class Limits:
    bound_by: str
    what: str


@dataclass(frozen=True, kw_only=True)
class MemoryParts:
    """GiB on one device; the parts sum to the total, which nvidia-smi shows for the process."""

    total: float
    params: float
    grads: float
    optimizer: float
    activations: float
    buffers: float
    comm_buffers: float
    reserve: float

    @property
    def tensors(self) -> float:
        """GiB of the program's tensors, without communicators and reserve. `planc audit` compares these."""
        return self.params + self.grads + self.optimizer + self.activations + self.buffers


@dataclass(frozen=True, kw_only=True)
class Reserved:
    """GiB that the fullest device's allocator and runtime hold at the peak, between `low` and `high`.

    `low` is the bytes of the tensors without fragmentation, less the share by which published peaks of the framework
    that `realise as` names may be below the prediction; `high` includes fragmentation of torch's allocator. In a report
    `high` is at least the upper end of the interval of the allocated peak.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        assert self.low <= self.high, self


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Limits of an `estimate`, in its unit: in four of five published runs of the class `of`, of which there are
    `runs`, the measured value is between `low` and `high`."""

    low: float
    estimate: float
    high: float
    runs: int
    of: str
    none_of: tuple[str, ...] = ()
    """The chip and the framework of the plan, if no run of the class uses them."""

    def __post_init__(self) -> None:
        assert self.low <= self.estimate <= self.high, self


@dataclass(frozen=True, kw_only=True)
class Uncertainty:
    """Intervals of the predictions, each for `share` of the runs: seconds of a step, and the peak of the tensors
    (GiB)."""

    share: float
    step_s: Interval
    allocated_gib: Interval


@dataclass(frozen=True, kw_only=True)
class StageMemory:
    stage: int
    layers: int
    ranks: int
    per_device_gib: MemoryParts
    peak_at: str


@dataclass(frozen=True, kw_only=True)
class Memory:
    capacity_gib: float
    usable_gib: float
    per_device_gib: MemoryParts
    stages: tuple[StageMemory, ...]
    allocated_gib: float = 0.0
    """Peak of the tensors on the fullest device, as `max_memory_allocated` counts it."""
    reserved_gib: Reserved = Reserved(low=0.0, high=0.0)

    @property
    def worst(self) -> StageMemory:
        return max(self.stages, key=lambda s: s.per_device_gib.total)


@dataclass(frozen=True, kw_only=True)
class Step:
    """Seconds of one optimizer step on the slowest class of ranks; the parts sum to `time_s`."""

    time_s: float
    tokens_per_s_per_device: float
    tflops_per_device: float
    mfu: float
    peak_tflops: float
    """The dense peak of a device (TFLOP/s) that `mfu` refers to."""
    peak_dtype: str
    """The dtype of that peak: the plan's `compute`, or the next wider one that the chip has a rate for."""
    compute_s: float
    recompute_s: float
    exposed_comm_s: float
    bubble_s: float
    optimizer_s: float
    offload_s: float
    overhead_s: float

    @property
    def peak(self) -> str:
        """The peak that `mfu` refers to, as text: `989 TFLOP/s (bf16)`."""
        return peak_text(self.peak_tflops, self.peak_dtype)


def peak_text(tflops: float, dtype: str) -> str:
    """Return a peak of `tflops` TFLOP/s in `dtype` as text, as printed with every MFU: `989 TFLOP/s (bf16)`."""
    return f"{tflops:.4g} TFLOP/s ({dtype})"


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """Goodput under failures: `runtime` is training time over wall time; `productivity` is that times MFU."""

    interruptions_per_day: float
    failures_per_day: dict[str, float]
    """Failures per day by component: `chips`, and links by name."""
    checkpoint_s: float
    """Time to write one checkpoint (s)."""
    checkpoint_interval_s: float
    """Training time between two checkpoints (s), at its optimum."""
    restart_s: float
    """Time from a failure to the first step (s), including reading the checkpoint."""
    runtime: float
    productivity: float


@dataclass(frozen=True, kw_only=True)
class RunCost:
    """Duration, cost and goodput of the whole run.

    Without `train for` there is no length, and without `price` no cost: those fields are None.
    """

    tokens: int | None = None
    steps: int | None = None
    days: float | None = None
    """Wall time, including failures, restarts and checkpoints."""
    device_hours: float | None = None
    currency: str | None = None
    price_per_hour: float | None = None
    """Price of all the plan's devices per hour, in `currency`."""
    price: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCollective:
    """A collective with its time. `exposed_s` is what it adds to the step of the slowest class of ranks."""

    row: Collective
    time_s: float
    exposed_s: float
    level: str
    algorithm: str

    def to_json(self) -> dict[str, Any]:
        row = self.row
        cause = row.cause
        return {
            "op": row.op,
            "axis": row.axis,
            "group_size": row.group_size,
            "stage": row.stage,
            "phase": row.phase,
            "tensor": row.tensor,
            "dtype": row.dtype,
            "count": row.count,
            "payload_bytes": row.payload_bytes,
            "wire_bytes": row.wire_bytes,
            "time_s": self.time_s,
            "exposed_s": self.exposed_s,
            "level": self.level,
            "algorithm": self.algorithm,
            "realised_by": " + ".join(row.realised_by) or None,
            "cause": None
            if cause is None
            else {"file": cause.span.file, "line": cause.span.line, "sentence": cause.sentence},
        }


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A sentence that a target does not support."""

    code: str
    line: int
    message: str


@dataclass(frozen=True, kw_only=True)
class TargetAnswer:
    """True or False for a target that lowers the plan, with the sentences that it refuses."""

    target: Target
    lowers: bool
    refusals: tuple[Refusal, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Report(Value, InNotebook):
    """The result of checking and costing a plan. The costed fields are None if the plan has errors.

    Field names carry units: seconds (`_s`), GiB (`_gib`), bytes (`_bytes`).

    >>> import planc
    >>> report = planc.check("plans/llama3_70b_v5p.plan")
    >>> report.devices, report.tokens_per_step, report.microbatches
    (256, 2097152, 1)
    """

    planc_version: str
    plan: str | None
    plan_sha256: str | None
    source_sha256: str | None
    set: dict[str, int]
    target: Target | None
    """The target whose program is costed; None: the minimum for any correct program."""
    targets: tuple[TargetAnswer, ...] = ()
    framework: str | None = None
    """The framework that `realise as` names and that is costed; None: planc's own programs, or none."""
    model: ModelFacts | None = None
    tokens_per_step: int | None = None
    global_batch: int | None = None
    microbatches: int | None = None
    cluster: ClusterFacts | None = None
    devices: int | None = None
    mesh: dict[str, int] | None = None
    defaults: tuple[str, ...] = ()
    """Defaults of the plan that change seconds or GiB considerably: `recompute none`, `microbatch 1`."""
    inexact: tuple[str, ...] = ()
    """Fields of another system's file that the plan says only nearly, or not at all."""
    axes: tuple[AxisFacts, ...] | None = None
    limits: Limits | None = None
    diagnostics: tuple[Diagnostic, ...] = ()
    memory: Memory | None = None
    step: Step | None = None
    collectives: tuple[TimedCollective, ...] | None = None
    goodput: Goodput | None = None
    run: RunCost | None = None
    """The whole run, if the plan says how long it trains or what an hour costs."""
    uncertainty: Uncertainty | None = None

    @property
    def ok(self) -> bool:
        return not has_errors(self.diagnostics)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON of `planc.report/1`."""
        rows = self.collectives
        plain = replace(self, diagnostics=(), collectives=())
        return {
            "format": "planc.report/1",
            **super(Report, plain).to_json(),
            "diagnostics": [d.to_json() for d in self.diagnostics],
            "collectives": None if rows is None else [r.to_json() for r in rows],
        }
