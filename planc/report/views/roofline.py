"""The roofline view: each op of the slowest stage, compared with the chip's peak FLOP/s and memory bandwidth."""

from __future__ import annotations

from planc.costing.bounds import bounds
from planc.costing.compute.flops import op_bytes, op_flops
from planc.costing.compute.gemm import matmul_bytes
from planc.costing.compute.section import op_s
from planc.costing.machine.rates import memory_bytes_per_s, peak_flops_per_s
from planc.ir.hardware import Chip
from planc.ir.plan import Plan
from planc.picture.marks import Circle, Mark, Path, Picture, StraightLine, Text, text_px
from planc.picture.scales import LogScale
from planc.picture.units import percent, rate, seconds
from planc.report.data import Data, PageSubject
from planc.sharding.stage_assignment import microbatches_each, sections_on

MOST_NAMES = 7
"""Number of points with labels: those that take the most time."""


class OpPoint(Data):
    """An op's forward for one microbatch on one device."""

    name: str
    section: str
    flops: float
    bytes: float
    seconds: float
    step_s: float
    """Seconds per step: forward and backward of every copy and microbatch on the slowest stage."""


class RooflineFigure(Data):
    """A closed-form bound: a figure of the plan, and the limit at which transfers take as long as the matmuls."""

    axis: str
    has: float
    limit: float
    side: str
    by_compute: bool
    what: str


class Roofline(Data):
    """Roofline view."""

    chip: str
    dtype: str
    flops_per_s: float
    """Data-sheet peak of the compute dtype on one device."""
    bytes_per_s: float
    """Memory bandwidth that kernels reach on one device."""
    ops: tuple[OpPoint, ...]
    bounds: tuple[RooflineFigure, ...]
    summary: str

    @property
    def ridge(self) -> float:
        """The arithmetic intensity (FLOPs per byte) above which an op is compute-bound."""
        return self.flops_per_s / self.bytes_per_s


def roofline(subject: PageSubject) -> Roofline:
    """Return the ops of the slowest stage of `subject`, by their time, longest first, and closed-form bounds on the
    plan's communication."""
    sharded, plan = subject.costed.sharded, subject.costed.sharded.plan
    chip, dtype = plan.cluster.chip, plan.precision.multiplied
    points: list[OpPoint] = []
    for section, copies in sections_on(plan, subject.exposed_stage).items():
        for o in sharded.ops.get(section, ()):
            forward = op_s(sharded, o, chip)
            times = copies * microbatches_each(plan)
            points.append(
                OpPoint(
                    name=o.op.name,
                    section=section,
                    flops=op_flops(sharded, o),
                    bytes=matmul_bytes(sharded, o) if o.op.kind == "matmul" else op_bytes(sharded, o),
                    seconds=forward,
                    step_s=times * (forward + op_s(sharded, o, chip, backward=True)),
                )
            )
    points.sort(key=lambda p: -p.step_s)
    peak, memory_rate = _peak(plan, chip, dtype), memory_bytes_per_s(chip)
    return Roofline(
        chip=chip.name,
        dtype=dtype,
        flops_per_s=peak,
        bytes_per_s=memory_rate,
        ops=tuple(points),
        bounds=tuple(
            RooflineFigure(axis=b.axis, has=b.has, limit=b.limit, side=b.side, by_compute=b.by_compute, what=b.what)
            for b in bounds(plan)
        ),
        summary=_message(points, peak / memory_rate, chip.name),
    )


def _peak(plan: Plan, chip: Chip, dtype: str) -> float:
    """Return the data-sheet FLOP/s of one device in the fastest dtype that the plan computes with."""
    dtypes = [dtype, *(q.dtype for q in plan.quantize)]
    return max(peak_flops_per_s(chip, d) for d in dtypes)


def _message(points: list[OpPoint], ridge: float, chip: str) -> str:
    total = sum(p.step_s for p in points) or 1.0
    fed = sum(p.step_s for p in points if p.flops < ridge * p.bytes) / total
    first = points[0] if points else None
    longest = f" The longest is {first.name}, {seconds(first.step_s)} a step." if first else ""
    return (
        f"Above {ridge:,.0f} FLOPs for each byte, {chip}'s compute binds, below its memory. Ops that memory binds take"
        f" {percent(fed)} of the ops' time.{longest}"
    )


def picture(data: Roofline, width: float) -> Picture | None:
    """Return a plot of achieved FLOP/s against FLOPs per byte for the ops of `data`, `width` pixels wide; None if no op
    computes."""
    ops = [p for p in data.ops if p.flops > 0 and p.bytes > 0 and p.seconds > 0]
    if not ops:
        return None
    left, top, bottom = 84.0, 26.0, 280.0
    intensities, reached = [p.flops / p.bytes for p in ops], [p.flops / p.seconds for p in ops]
    across = LogScale(min(*intensities, data.ridge) / 3, max(*intensities, data.ridge) * 4, left, width - 12)
    up = LogScale(min(*reached, data.flops_per_s / 10) / 2, data.flops_per_s * 2, bottom, top)
    marks: list[Mark] = []
    for tick in up.ticks():
        y = up.px(tick)
        marks += [
            StraightLine(left, y, width - 12, y, "grid"),
            Text(left - 6, y + 4, rate(tick, "FLOP"), "small", "end"),
        ]
    for tick in across.ticks():
        x = across.px(tick)
        marks += [StraightLine(x, top, x, bottom, "grid"), Text(x, bottom + 16, f"{tick:,.6g}", "small", "middle")]
    marks.append(Text(width - 12, bottom + 32, "FLOPs for each byte of device memory", "small", "end"))
    ridge_x, roof_y = across.px(data.ridge), up.px(data.flops_per_s)
    low = max(across.low, up.low / data.bytes_per_s)
    slope = f"M{across.px(low):.1f} {up.px(low * data.bytes_per_s):.1f}L{ridge_x:.1f} {roof_y:.1f}H{width - 12:g}"
    marks.append(Path(slope, "roof", f"{rate(data.flops_per_s, 'FLOP')}, {rate(data.bytes_per_s, 'B')}"))
    roof_name, slope_name = f"peak {rate(data.flops_per_s, 'FLOP')}", f"memory {rate(data.bytes_per_s, 'B')}"
    slope_x, slope_y = across.px(low) + 12, up.px(low * data.bytes_per_s) - 4
    marks += [
        Text(width - 12, roof_y - 6, roof_name, "small halo", "end"),
        Text(slope_x, slope_y, slope_name, "small halo"),
    ]
    wide = text_px(roof_name)
    taken = [(width - 12 - wide, roof_y - 6, wide), (slope_x, slope_y, text_px(slope_name))]
    marks += _points(data, across, up, ops, width, taken)
    return Picture(width, bottom + 38, "Roofline of the ops of the slowest stage", data.summary, tuple(marks))


Box = tuple[float, float, float]
"""Left end, baseline and width of a label."""


def _points(
    data: Roofline, across: LogScale, up: LogScale, ops: list[OpPoint], width: float, taken: list[Box]
) -> list[Mark]:
    """Return a circle for each op, with an area proportional to the op's share of the step. The longest ops are
    labelled, where a label covers no circle and no box in `taken`."""
    most = max(p.step_s for p in ops)
    marks: list[Mark] = []
    circles: list[Box] = []
    for p in ops:
        x, y = across.px(p.flops / p.bytes), up.px(p.flops / p.seconds)
        reached = f"{rate(p.flops / p.seconds, 'FLOP')}, {p.flops / p.bytes:,.0f} FLOPs a byte"
        title = f"{p.name}: {reached}, {seconds(p.step_s)} a step"
        radius = 3 + 9 * (p.step_s / most) ** 0.5
        marks.append(Circle(x, y, radius, "accent faint", title))
        circles.append((x - radius, y + 4, 2 * radius))
    named: list[Mark] = []
    for p in ops[:MOST_NAMES]:
        x, y = across.px(p.flops / p.bytes), up.px(p.flops / p.seconds)
        wide = text_px(p.name)
        beside = [(x + 14, foot) for foot in (y + 4, y + 18, y - 12)]
        left = [(x - 14 - wide, foot) for foot in (y + 4, y + 18)]
        places = [(s, f) for s, f in (*beside, *left) if across.start <= s and s + wide < width - 12]
        found = next(((s, f) for s, f in places if _free(s, f, wide, [*taken, *circles])), None)
        if found is not None:
            taken.append((*found, wide))
            named.append(Text(*found, p.name, "small halo"))
    return marks + named


def _free(start: float, foot: float, wide: float, taken: list[Box]) -> bool:
    return all(abs(foot - f) >= 13 or start + wide < s or s + w < start for s, f, w in taken)
