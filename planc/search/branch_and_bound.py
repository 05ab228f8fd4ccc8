"""The best layouts of a space: bounded from below, costed in the order of their bounds, ranked.

A layout is decided when it is costed, when it breaks a rule of the language, or when its bound says that
neither its time nor its memory can get it among those that are asked for. What is returned is what costing
every single one would return.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import Any, overload

from planc.cost.memory.peak import GIB
from planc.cost.step.layout_cost import LayoutCost
from planc.cost.step.step_time import step_lower_bound_s
from planc.diag.fast_dataclass import dataclass
from planc.ir.report import Step
from planc.search.constraints import Constraints
from planc.search.explain import reasons
from planc.search.lower_bounds import Bounds, Family, Shape
from planc.search.space import Point, Space

REPORT_EVERY = 64
"""Nodes between two reports of progress."""
NEAR = 1.1
"""The front holds layouts that take up to so many times the best one's time: beyond it memory is cheap."""


@dataclass(frozen=True)
class Candidate:
    """A layout of the space that was costed: its file's text, and the step and memory that `planc cost` finds."""

    text: str
    """The plan file with every `?` filled in."""
    label: str
    """Values of the free places, on one line."""
    step: Step
    memory_gib: float
    """GiB of the fullest device."""
    point: Point
    why: str = ""
    """Why it beats the next one."""

    @property
    def time_s(self) -> float:
        """Seconds of a step."""
        return self.step.time_s

    @property
    def s_per_sequence(self) -> float:
        """The objective: seconds of a step for each of its sequences."""
        return self.time_s / self.point.sequences

    def to_json(self) -> dict[str, Any]:
        step = self.step
        return {
            "plan": self.text,
            "time_s": self.time_s,
            "memory_gib": self.memory_gib,
            "mfu": step.mfu,
            "tokens_per_s_per_device": step.tokens_per_s_per_device,
            "why": self.why,
        }


@dataclass(frozen=True)
class Found(Sequence[Candidate]):
    """`planc.search/1`: the best layouts, fastest first.

    `decided` counts the layouts of the space, `fully_costed` those of them that were costed.
    """

    best: tuple[Candidate, ...]
    pareto: tuple[Candidate, ...]
    decided: int
    fully_costed: int
    seconds: float
    room_gib: float
    """Memory limit of a device (GiB)."""
    nearest_miss: Candidate | None = None
    """Where nothing fits: the layout that breaks no rule and needs the least memory."""

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
            "decided": self.decided,
            "fully_costed": self.fully_costed,
            "seconds": self.seconds,
            "best": [c.to_json() for c in self.best],
            "pareto": [c.to_json() for c in self.pareto],
            "room_gib": self.room_gib,
            "nearest_miss": self.nearest_miss.to_json() if self.nearest_miss else None,
        }


def search(
    source: str | Path,
    *,
    set: dict[str, int] | None = None,
    top: int = 10,
    most_sequences: int | None = None,
    memory_gib: float | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Found:
    """The `top` fastest layouts that fit, and the front of time against memory near the fastest.

    `most_sequences` is the largest batch when the plan leaves it free; the time of a sequence is then what
    counts. `memory_gib` is what a device may hold; the chip's memory unless it is given. `on_progress` is called
    now and then with the number of layouts costed and of nodes that wait. Raises PlanError when the plan has
    mistakes that no filling-in mends.
    """
    started = time.perf_counter()
    space = Space(Path(source), set, most_sequences)
    run = _Run(space, top, memory_gib, on_progress)
    with gc_paused():
        run.go()
        nearest = None if run.best else run.nearest_miss()
    best = tuple(sorted(run.best, key=_order))[:top]
    return Found(
        best=reasons(best),
        pareto=tuple(_front(run.fitting)),
        decided=run.decided,
        fully_costed=run.costed,
        seconds=time.perf_counter() - started,
        room_gib=run.room_gib,
        nearest_miss=nearest,
    )


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause garbage collection, which takes a fifth of a search: it makes many small values and no cycles.

    Values made meanwhile count as old afterwards, so that the next young collection does not scan all of them.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def _order(c: Candidate) -> tuple[float, float, str]:
    """Fastest first; then the least memory, then the text: the same every time. Last digits do not count."""
    return float(f"{c.s_per_sequence:.12g}"), float(f"{c.memory_gib:.12g}"), c.text


def _front(candidates: list[Candidate]) -> Iterator[Candidate]:
    """Those near the fastest that no other one beats in time and memory, the fastest first."""
    least = float("inf")
    ranked = sorted(candidates, key=_order)
    for c in ranked:
        s, gib, _ = _order(c)
        if gib < least and s <= NEAR * ranked[0].s_per_sequence:
            least = gib
            yield c


Key = tuple[float, float, int]
"""Lower bounds on seconds a sequence and GiB, and a number: among equal nodes the first one pushed comes first."""


@dataclass(frozen=True)
class LeafNode:
    """A layout costed except for the simulation of its pipeline.

    `simulated_bound` is True once its bound comes from a simulation of a few microbatches.
    """

    point: Point
    layout: LayoutCost
    simulated_bound: bool = False


Node = Family | Shape | LeafNode
"""A node of the search tree, from the coarse to the fine."""


class _Run:
    """One search."""

    def __init__(
        self,
        space: Space,
        top: int,
        memory_gib: float | None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        chip = space.plan.cluster.chip
        self.space, self.bounds, self.top = space, Bounds(space), top
        self.constraints = Constraints(space, self.bounds)
        self.room_gib = memory_gib or chip.memory_bytes / chip.devices / 2**30
        self.best: list[Candidate] = []
        self.fitting: list[Candidate] = []
        self.waiting: list[tuple[Key, Node]] = []
        self.decided = self.costed = self.met = self.opened = 0
        self.on_progress = on_progress
        self._last_s = self._limit_s = float("inf")
        """Seconds a sequence of the k-th best layout, and the limit beyond which a node enters neither list."""

    def go(self) -> None:
        """Best-first search: expand the node with the lowest bound until none can be among the best."""
        for family in self._families():
            if any(True for _ in self.bounds.shapes(family, self.room_gib)):
                self._wait(self.bounds.of_family(family) / family.sequences, 0.0, family)
        while self.waiting:
            (bound_s, bound_gib, _), node = heappop(self.waiting)
            if self._open(bound_s, bound_gib):
                self._take(node, bound_s, bound_gib)
                self._report(len(self.waiting))

    def nearest_miss(self) -> Candidate | None:
        """The layout that breaks no rule and needs the least memory; None where every layout breaks one.

        Nodes are opened in the order of their lower bounds on memory, until none can need less than the best.
        """
        best: Candidate | None = None
        waiting: list[tuple[float, int, Shape | tuple[Shape, Point]]] = []
        for family in self._families(count=False):
            for shape in self.bounds.shapes(family):
                waiting.append((shape.first_bytes / GIB, len(waiting), shape))
        heapify(waiting)
        number = len(waiting)
        while waiting and (best is None or waiting[0][0] < best.memory_gib):
            node = heappop(waiting)[2]
            self._report(len(waiting))
            if isinstance(node, Shape):
                for gib, point in self.bounds.points(node):
                    number += 1
                    heappush(waiting, (gib, number, (node, point)))
            elif self.constraints.allow_point(node[1]):
                shape, point = node
                found = self._costed(point, self.bounds.layout(point, shape))
                best = found if best is None or found.memory_gib < best.memory_gib else best
        return best

    def _report(self, waiting: int) -> None:
        self.opened += 1
        if self.on_progress is not None and self.opened % REPORT_EVERY == 0:
            self.on_progress(self.costed, waiting)

    def _open(self, bound_s: float, bound_gib: float) -> bool:
        """True unless these bounds exclude the node: over the memory limit, slower than the k-th best, or dominated."""
        return bound_gib <= self.room_gib and bound_s <= self._limit_s and not self._beaten(bound_s, bound_gib)

    def _wait(self, bound_s: float, bound_gib: float, node: Node) -> None:
        self.met += 1
        if self._open(bound_s, bound_gib):
            heappush(self.waiting, ((bound_s, bound_gib, self.met), node))

    def _take(self, node: Node, bound_s: float, bound_gib: float) -> None:
        """Expand a node into its children, cheapest bound first; cost it if it is a leaf."""
        if isinstance(node, Family):
            for shape in self.bounds.shapes(node, self.room_gib):
                self._wait(self.bounds.critical_path_s(shape) / node.sequences, shape.first_bytes / GIB, shape)
        elif isinstance(node, Shape):
            for gib, point in self.bounds.points(node):
                if self._open(bound_s, gib):
                    layout = self.bounds.layout(point, node)
                    self._wait(self.bounds.time_s(layout, node) / point.sequences, gib, LeafNode(point, layout))
        elif not node.simulated_bound:
            point, layout = node.point, node.layout
            nearer_s = step_lower_bound_s(layout.plan, layout.division.held, layout.work) / point.sequences
            self._wait(max(bound_s, nearer_s), bound_gib, LeafNode(point, layout, simulated_bound=True))
        else:
            candidate = self._cost(node)
            if candidate is not None:
                self._keep(candidate)

    def _keep(self, candidate: Candidate) -> None:
        self.fitting.append(candidate)
        self.best = sorted([*self.best, candidate], key=_order)[: self.top]
        if len(self.best) == self.top:
            self._last_s = self.best[-1].s_per_sequence
            self._limit_s = max(self._last_s, NEAR * self.best[0].s_per_sequence)

    def _families(self, *, count: bool = True) -> Iterator[Family]:
        """Every family whose mesh is lawful. With `count`, all layouts of the space count as decided."""
        for sizes in self.space.sizes():
            self.decided += self.bounds.count(sizes) if count else 0
            if self.constraints.allow(sizes):
                yield from self.bounds.families(sizes)

    def _beaten(self, bound_s: float, bound_gib: float) -> bool:
        """True if enough layouts are faster, and one of them needs less memory too: the node is dominated."""
        if bound_s <= self._last_s:
            return False
        return any(c.s_per_sequence <= bound_s and c.memory_gib <= bound_gib for c in self.fitting)

    def _cost(self, close: LeafNode) -> Candidate | None:
        """Cost a layout as `planc cost` does; None when it breaks a rule or does not fit."""
        point, layout = close.point, close.layout
        if not self.constraints.allow_point(point):
            return None
        candidate = self._costed(point, layout)
        return candidate if candidate.memory_gib <= self.room_gib else None

    def _costed(self, point: Point, layout: LayoutCost) -> Candidate:
        self.costed += 1
        step, gib = self.bounds.cost(point, layout)
        return Candidate(self.space.text_of(point), self.space.label_of(point), step, gib, point)
