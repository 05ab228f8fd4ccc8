"""The memory view: GiB of a device of each pipeline stage, compared with its capacity."""

from __future__ import annotations

from planc.picture.charts import Bar, BarPart, Limit, stacked_bars
from planc.picture.marks import Picture
from planc.picture.units import gib
from planc.report.data import Data, PageSubject
from planc.report.parts import MEMORY_PARTS as PARTS


class MemoryParts(Data):
    """GiB of each part; they sum to the total."""

    params: float
    grads: float
    optimizer: float
    activations: float
    buffers: float
    comm_buffers: float
    reserve: float

    @property
    def values(self) -> list[float]:
        """The GiB of the parts, in the order of `PARTS`."""
        return [getattr(self, part.css) for part in PARTS]

    @property
    def largest(self) -> BarPart:
        """The part with the most GiB."""
        return max(PARTS, key=lambda part: getattr(self, part.css))


class Stage(Data):
    """A device of one pipeline stage. `ranks` devices hold the same."""

    stage: int
    layers: int
    ranks: int
    total_gib: float
    parts_gib: MemoryParts
    peak_at: str


class MemoryView(Data):
    """Memory view."""

    capacity_gib: float
    usable_gib: float
    fullest: int
    stages: tuple[Stage, ...]
    summary: str

    @property
    def worst(self) -> Stage:
        """The fullest stage."""
        return self.stages[self.fullest]


def memory(subject: PageSubject) -> MemoryView:
    """Return the memory of a device of each pipeline stage, for the costed plan in `subject`."""
    used = subject.costed.memory
    stages = tuple(
        Stage(
            stage=s.stage,
            layers=s.layers,
            ranks=s.ranks,
            total_gib=s.per_device_gib.total,
            parts_gib=MemoryParts(**{p.css: getattr(s.per_device_gib, p.css) for p in PARTS}),
            peak_at=s.peak_at,
        )
        for s in used.stages
    )
    worst = max(stages, key=lambda s: s.total_gib)
    largest = worst.parts_gib.largest
    spare = used.capacity_gib - worst.total_gib
    room = f"{gib(spare)} GiB are free" if spare >= 0 else f"{gib(-spare)} GiB too much"
    where = f"Stage {worst.stage} is fullest" if len(stages) > 1 else "Every device holds as much"
    return MemoryView(
        capacity_gib=used.capacity_gib,
        usable_gib=used.usable_gib,
        fullest=stages.index(worst),
        stages=stages,
        summary=f"{where}: {gib(worst.total_gib)} of {gib(used.capacity_gib)} GiB, {room}. Most of it is"
        f" {largest.name}, {gib(getattr(worst.parts_gib, largest.css))} GiB."
        f" Its fullest moment is the {worst.peak_at}.",
    )


def picture(data: MemoryView, width: float) -> Picture:
    """Return stacked bars of `data`, one per stage, `width` pixels wide."""
    rows = [
        Bar(
            f"stage {s.stage}" if len(data.stages) > 1 else "each device",
            s.parts_gib.values,
            f"{gib(s.total_gib)} GiB",
            strong=s.stage == data.worst.stage and len(data.stages) > 1,
        )
        for s in data.stages
    ]
    return stacked_bars(
        rows,
        PARTS,
        title="Memory of a device by pipeline stage",
        summary=data.summary,
        unit="GiB",
        width=width,
        limit=Limit(data.capacity_gib, f"{gib(data.capacity_gib)} GiB of a device"),
    )
