"""The result of a search (`planc.search/1`): the layouts that it found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, field
from enum import IntEnum
from typing import Any, Literal, overload

from planc.checks.cost.w0508_margin import LEFT
from planc.diag.fast_dataclass import dataclass
from planc.ir.report import Interval, RunCost, Step
from planc.ir.target import Target
from planc.picture.notebook import InNotebook
from planc.picture.units import seconds
from planc.searching.space import Point

Ends = Literal["", "time", "interrupt", "memory"]
"""Reason why a search stopped before it decided its whole space; empty if it decided all."""


class Fate(IntEnum):
    """How the layouts of a mesh end, by the one that came nearest to an answer: a rule of the language or the target
    refuses it, it needs too much memory, others are faster, it was not decided, or it is in the answer."""

    RULE = 0
    TARGET = 1
    MEMORY = 2
    SLOWER = 3
    OPEN = 4
    FOUND = 5


@dataclass(frozen=True)
class Candidate:
    """A layout that was costed: its plan file, and the step and memory that `planc cost` predicts for it."""

    text: str
    """The plan file with every `?` filled in."""
    values: tuple[str, ...]
    """Values of the free places, in the order of the file."""
    step: Step
    memory_gib: float
    """GiB of the fullest device."""
    point: Point
    why: str = ""
    """Why it beats the next one."""
    run: RunCost | None = None
    """The whole run, where the plan says how long it trains or what an hour costs."""
    interval: Interval | None = None
    """The 80 % interval of the seconds of a step."""
    same: tuple[Candidate, ...] = ()
    """Other layouts whose step and memory are printed with the same digits."""

    @property
    def label(self) -> str:
        """Values of the free places, on one line."""
        return ", ".join(self.values)

    @property
    def row(self) -> str:
        """The label, and what the layouts in `same` have in place of its values: "fsdp 8, zero1 (or zero2)"."""
        apart = ([v for v, mine in zip(c.values, self.values, strict=True) if v != mine] for c in self.same)
        return f"{self.label} (or {'; '.join(map(', '.join, apart))})" if self.same else self.label

    @property
    def printed(self) -> tuple[int, str, str]:
        """Batch, step and memory as they are printed."""
        return self.point.sequences, seconds(self.time_s), f"{self.memory_gib:.1f}"

    @property
    def time_s(self) -> float:
        """Seconds of a step."""
        return self.step.time_s

    @property
    def s_per_sequence(self) -> float:
        """Seconds of a step per sequence of the batch: the quantity that the search minimizes."""
        return self.time_s / self.point.sequences

    def to_json(self) -> dict[str, Any]:
        step = self.step
        return {
            "plan": self.text,
            "time_s": self.time_s,
            "memory_gib": self.memory_gib,
            "mfu": step.mfu,
            "peak_tflops": step.peak_tflops,
            "peak_dtype": step.peak_dtype,
            "tokens_per_s_per_device": step.tokens_per_s_per_device,
            "why": self.why,
            "run": None if self.run is None else asdict(self.run),
            "interval_s": [self.interval.low, self.interval.high] if self.interval else None,
            "same": [c.text for c in self.same],
        }


@dataclass(frozen=True)
class Refused:
    """Layouts that break a rule of the language, or that the target does not support, for one reason."""

    code: str
    message: str
    """The message about the first of the layouts; messages about the others differ only in their numbers."""
    layouts: int
    meshes: int = 0
    """Number of meshes whose layouts are all refused, most of the way for this reason."""


@dataclass(frozen=True)
class Enough:
    """A layout that fits on more nodes than the plan has; None if none was found on up to so many."""

    nodes: int
    layout: Candidate | None

    @property
    def text(self) -> str:
        """The answer in words."""
        if self.layout is None:
            return f"none was found on up to {self.nodes:,} nodes either"
        return f"{self.nodes:,} nodes are enough: {self.layout.label}, {self.layout.memory_gib:.1f} GiB"

    def to_json(self) -> dict[str, Any]:
        return {"nodes": self.nodes, "layout": self.layout.to_json() if self.layout else None}


@dataclass(frozen=True)
class Found(Sequence[Candidate], InNotebook):
    """`planc.search/1`: the best layouts, fastest first.

    `decided` counts layouts that were costed, excluded by a bound or invalid, and `fully_costed` only those that were
    costed.
    """

    best: tuple[Candidate, ...]
    pareto: tuple[Candidate, ...]
    decided: int
    fully_costed: int
    seconds: float
    room_gib: float
    """Memory limit of a device (GiB)."""
    target: Target | None = None
    """Target whose programs were costed; None: seconds and memory of any correct program."""
    refused: int = 0
    """Layouts that the target was asked about and refused."""
    refusals: tuple[Refused, ...] = ()
    """Layouts that are no answer, by their reason, the most frequent first. Those that a bound excludes are not
    asked about."""
    nearest_miss: Candidate | None = None
    """The nearest miss where nothing fits: the layout that breaks no rule and needs the least memory."""
    may_fit: bool = False
    """True if the nearest miss fits at the lower end of what it may hold: `check` warns of it (W0508)."""
    cut_short: Ends = ""
    """Why the search ended before the whole space was decided; `best` are then the best of those that were met, and
    `decided` counts the layouts that were met. Empty: all were decided."""
    most_layouts: int = 0
    """Upper bound on the layouts of the space."""
    equivalent: int = 0
    """Number of layouts among the first five whose steps cannot be told apart from the first one's, which counts too:
    they are nearer to it than `planc.calibration.intervals.order_margin`."""
    meshes: dict[str, int] = field(default_factory=dict)
    """Number of meshes by their `Fate`, in lower case."""
    enough: Enough | None = None
    """More nodes on which a layout fits, if none does and they were looked for."""

    @property
    def meshes_text(self) -> str:
        """How many meshes end in which way, in words."""
        words = {
            "found": "in the answer",
            "open": "not decided",
            "slower": "slower",
            "memory": "with too little memory",
            "target": f"refused by the {self.target} target",
            "rule": "against a rule of the language",
        }
        named = ", ".join(f"{n:,} {words[fate]}" for fate, n in self.meshes.items())
        return f"{sum(self.meshes.values()):,} meshes: {named}"

    @property
    def roomy_gib(self) -> float:
        """GiB that a layout may take before `check` warns that it leaves too little (W0508)."""
        return self.room_gib * (1 - LEFT)

    @property
    def none_fits(self) -> str:
        """The message if no layout is predicted to fit."""
        return "no layout is sure to fit" if self.may_fit else "no layout fits"

    def __len__(self) -> int:
        return len(self.best)

    @overload
    def __getitem__(self, index: int) -> Candidate: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Candidate]: ...
    def __getitem__(self, index: int | slice) -> Candidate | Sequence[Candidate]:
        return self.best[index]

    def to_json(self) -> dict[str, Any]:
        return {
            "format": "planc.search/1",
            "target": self.target,
            "decided": self.decided,
            "fully_costed": self.fully_costed,
            "refused": self.refused,
            "refusals": [asdict(reason) for reason in self.refusals],
            "seconds": self.seconds,
            "best": [c.to_json() for c in self.best],
            "pareto": [c.to_json() for c in self.pareto],
            "room_gib": self.room_gib,
            "nearest_miss": self.nearest_miss.to_json() if self.nearest_miss else None,
            "may_fit": self.may_fit,
            "cut_short": self.cut_short or None,
            "most_layouts": self.most_layouts,
            "equivalent": self.equivalent,
            "meshes": self.meshes,
            "enough": self.enough.to_json() if self.enough else None,
        }
