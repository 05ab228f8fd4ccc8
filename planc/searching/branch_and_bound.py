"""Branch and bound over layouts: bounds each from below, costs them in the order of their bounds, and ranks them.

A layout is decided when it is costed, when it breaks a rule of the language, or when its bounds on time and memory
exclude it from the result. The result equals that of costing every layout.

The bounds hold for any correct program. With a target, layouts are costed with the target's program; those that it does
not support or that do not fit are dropped. A program may transfer less than the plan's sentences ask for: torch may
keep parameters gathered for a whole pipeline step, or reduce gradients once. The bounds for programs therefore count
each parameter and gradient once a step, and one call per section (the layers of a kind, or what is before or after
them). If all ranks of a pipeline run one program, the bounds count only the layers and use no simulation.

Since a program may still be faster or smaller than its bounds, a time bound excludes a layout only above TARGET_SLACK
times the time of the slowest layout in the result, and a memory bound only above the memory limit divided by
TARGET_MEMORY. The search can miss a layout whose program saves more than that.
"""

from __future__ import annotations

import gc
import itertools
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from planc.calibration.intervals import order_margin, step_ratios
from planc.costing.costed import cost_plan
from planc.costing.memory.peak import GIB, memory
from planc.costing.step.layout_cost import LayoutCost
from planc.costing.step.whole_run import run_of
from planc.diag.diagnostic import Diagnostic
from planc.diag.errors import PlanError
from planc.ir.backend import Backend, run_by
from planc.ir.garbage import gc_paused
from planc.ir.plan import Plan
from planc.ir.target import Target
from planc.pipeline.lower_bound import makespan_lower_bound_s
from planc.searching.constraints import Constraints
from planc.searching.explain import reasons
from planc.searching.lower_bounds import Bounds, LayoutFamily, LayoutShape
from planc.searching.result import Candidate, Ends, Fate, Found, Refused
from planc.searching.space import Point, Space

REPORT_EVERY = 64
"""Number of nodes between two progress reports."""
TARGET_SLACK = 1.005
"""With a target, nodes are expanded up to this multiple of the slowest returned layout's seconds, because a program may
omit a collective that the plan's sentences ask for."""
TARGET_MEMORY = 0.5
"""With a target, a program may need as little as this fraction of the memory bound: XLA keeps fewer activations than
the plan's ops save."""
NEAREST_MISSES = 32
"""With a target, the nearest miss is chosen among this many layouts with the lowest memory bounds."""
PROBES = 32
"""Number of sample layouts that the target must accept or refuse before the search. If it refuses all of them, it
refuses the space."""
LARGE = 20_000
"""A space with more meshes than this is searched in parts, which bounds the search's memory: some layouts are costed
before all meshes are enumerated."""
PROBED = 2_000
"""Number of meshes of such a space from which the sample layouts are drawn."""
PART = 500
"""Number of meshes in a part."""
PART_NODES = 500
"""Minimum number of nodes expanded between two parts."""
MOST_WAITING = 100_000
"""Maximum number of open nodes of a large space. Beyond it, the nodes with the highest bounds are dropped."""
COMPARED = 5
"""Number of best layouts that are tested for a difference beyond the margin of the prediction."""
NEAR = 1.1
"""The Pareto front holds layouts that take at most this multiple of the best layout's time."""


def search(
    space: Space,
    *,
    top: int = 10,
    memory_gib: float | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    backend: Backend | None = None,
    ends: Callable[[], Ends] | None = None,
    leanest: bool = False,
) -> Found:
    """Return the `top` fastest layouts that fit, and the Pareto front of time against memory near the fastest layout.

    Args:
        space: the layouts to search. If the batch size is open, they are compared by the time per sequence.
        top: number of layouts returned.
        memory_gib: memory that a device may use (GiB); None: the chip's.
        on_progress: called repeatedly with the number of layouts costed and the number of unexpanded search nodes.
        backend: the backend of a target, whose programs are costed. None: layouts are costed for any correct program.
        ends: called repeatedly; "" to continue, or the reason to end the search with the best layouts so far.
        leanest: only look for a layout that fits, by memory alone; it is the result's `nearest_miss`.

    Raises PlanError, with the diagnostics of one layout, if the target does not support any layout.
    """
    started = time.perf_counter()
    run = _Run(space, top, memory_gib, on_progress, backend, ends)
    with gc_paused():
        run.probe()
        if not leanest:
            run.go()
        nearest = None if run.best or run.ended() else run.nearest_miss()
    best = tuple(replace(first, same=tuple(same)) for first, *same in rows(run.best, top))
    meshes = run.fates()
    return Found(
        best=_with_intervals(reasons(best), space.plan),
        pareto=_with_intervals(_front(run.fitting), space.plan),
        decided=run.decided,
        fully_costed=run.costed,
        seconds=time.perf_counter() - started,
        room_gib=run.room_gib,
        target=run.target,
        refused=run.refused,
        refusals=tuple(sorted(run.refusals.values(), key=lambda r: (-r.layouts, r.code, r.message))),
        nearest_miss=_with_intervals([nearest], space.plan)[0] if nearest else None,
        may_fit=nearest is not None and run.may_fit(nearest),
        cut_short=run.cut_short,
        most_layouts=space.most_layouts,
        equivalent=equivalent(best),
        meshes=meshes,
    )


def rows(candidates: Iterable[Candidate], top: int) -> list[list[Candidate]]:
    """Return the first `top` groups of layouts of `candidates` (fastest first) whose steps and memory are printed with
    the same digits."""
    found: dict[object, list[Candidate]] = {}
    for c in candidates:
        if c.printed in found or len(found) < top:
            found.setdefault(c.printed, []).append(c)
    return [*found.values()]


def _next_digit_s(time_s: float) -> float:
    """Return a time (s) that is surely printed with other digits than `time_s` by `planc.picture.units.seconds`."""
    return time_s + (0.01 if time_s >= 1 else 1e-4 if time_s >= 1e-3 else 1e-6)


def _with_intervals(found: Iterable[Candidate], plan: Plan) -> tuple[Candidate, ...]:
    ratios = step_ratios(plan)
    return tuple(replace(c, interval=ratios.around(c.time_s, plan)) for c in found)


def equivalent(best: Sequence[Candidate]) -> int:
    """Return how many of the first five layouts of `best` (fastest first) are as fast as the first within the margin of
    error of the prediction."""
    most = (1 + order_margin()) * best[0].s_per_sequence if best else 0.0
    return sum(c.s_per_sequence < most for c in best[:COMPARED])


def _order(c: Candidate) -> tuple[float, float, str]:
    """Return the sort key of a layout: time, memory, text, with times and memory rounded to 12 digits so that rounding
    errors do not decide."""
    return float(f"{c.s_per_sequence:.12g}"), float(f"{c.memory_gib:.12g}"), c.text


def _front(candidates: list[Candidate]) -> Iterator[Candidate]:
    """Yield the Pareto front of time and memory, fastest first, up to NEAR times the time of the fastest layout."""
    least = float("inf")
    ranked = sorted(candidates, key=_order)
    for c in ranked:
        s, gib, _ = _order(c)
        if gib < least and s <= NEAR * ranked[0].s_per_sequence:
            least = gib
            yield c


Key = tuple[float, float, int]
"""Lower bounds on seconds per sequence and on GiB, and a counter that puts equal nodes in the order they were added."""


class LeafNode(NamedTuple):
    """A layout whose cost is known except for the simulation of its pipeline.

    `simulated_bound` is True if its time bound already comes from a simulation of a few microbatches, or needs none.
    """

    point: Point
    layout: LayoutCost
    simulated_bound: bool = False


Node = LayoutFamily | LayoutShape | LeafNode
"""A node of the search tree: the coarsest kind first."""


class _Run:
    def __init__(
        self,
        space: Space,
        top: int,
        memory_gib: float | None,
        on_progress: Callable[[int, int], None] | None = None,
        backend: Backend | None = None,
        ends: Callable[[], Ends] | None = None,
    ) -> None:
        self._ends = ends
        self.cut_short: Ends = ""
        self.large = space.meshes > LARGE
        chip = space.plan.cluster.chip
        self.backend, self.refused, self.slack = backend, 0, TARGET_SLACK if backend else 1.0
        self.target: Target | None = None
        self.space, self.bounds, self.top = space, Bounds(space, backend), top
        self.constraints = Constraints(space, self.bounds)
        self.room_gib = memory_gib or chip.memory_bytes / chip.devices / 2**30
        self.open_gib = self.room_gib / TARGET_MEMORY if backend else self.room_gib
        """Nodes with a memory bound above this are not expanded (GiB)."""
        self.best: list[Candidate] = []
        self.fitting: list[Candidate] = []
        self._fitting_bounds: list[tuple[float, float]] = []
        """Seconds per sequence of each layout, and the lower bound on its memory (GiB)."""
        self.waiting: list[tuple[Key, Node]] = []
        self.refusals: dict[tuple[str, str], Refused] = {}
        """The refused layouts, by code and reason."""
        self._meshes: dict[tuple[tuple[int, ...], int], tuple[Fate, tuple[str, str]]] = {}
        """Why the layouts of a mesh are no answer: of the one that came nearest, and the refusal if it is one."""
        self.decided = self.costed = self.met = self.opened = 0
        self.on_progress = on_progress
        self._last_s = self._limit_s = float("inf")
        """Seconds per sequence of the k-th best layout, and the limit above which a node is pruned."""

    def go(self) -> None:
        """Expand the search node with the lowest bound until no remaining node can be among the best."""
        families = self._families()
        while not self.ended():
            met = 0
            for family in itertools.islice(families, PART if self.large else None):
                met += 1
                if unfit := self.bounds.unfit(family):
                    message = f"the schedule runs other numbers of microbatches than {family.microbatches:,}"
                    why = self._refuse(self.space.refusal("E0402", message), unfit * len(family.variants))
                    self._end(family, Fate.RULE, why)
                if any(True for _ in self.bounds.shapes(family, self.open_gib)):
                    self._wait(self.bounds.of_family(family) / family.sequences, 0.0, family)
                elif unfit < len(self.space.pipelines(family.ranks)):
                    self._end(family, Fate.MEMORY)
            self._expand(PART_NODES if self.large and met else None)
            if not self.large or not met:
                return
            self._free_memory()

    def _expand(self, most: int | None) -> None:
        """Expand at most `most` nodes (None: all), the one with the lowest bound first."""
        taken = 0
        while self.waiting and taken != most and not self.ended():
            (bound_s, bound_gib, _), node = heappop(self.waiting)
            if self._open(bound_s, bound_gib, node):
                taken += 1
                self._take(node, bound_s, bound_gib)
                self._report(len(self.waiting))

    def ended(self) -> bool:
        """True if the search must stop and return the layouts found so far."""
        if self._ends is not None and self.cut_short in ("", "memory"):
            self.cut_short = self._ends() or self.cut_short
        return self.cut_short in ("time", "interrupt")

    def _forget_meshes(self) -> None:
        """Clear the caches of meshes, which may be many, since most meshes of a large space are invalid."""
        self.space.forget_meshes()
        self.constraints.cache.clear()
        gc.collect()  # it is paused, and a mesh holds tables that refer to it

    def _free_memory(self) -> None:
        """Clear caches, drop nodes that can no longer be among the best and, if too many remain, those with the highest
        bounds."""
        self._forget_meshes()
        self.bounds.cache.clear()
        if len(self.waiting) > MOST_WAITING:
            self.waiting = [entry for entry in self.waiting if self._open(*entry[0][:2], entry[1])]
        if len(self.waiting) > MOST_WAITING:
            self.cut_short = self.cut_short or "memory"
            ranked = sorted(self.waiting, key=lambda entry: entry[0])
            self.waiting, dropped = ranked[: MOST_WAITING // 2], ranked[MOST_WAITING // 2 :]
            for _, node in dropped:
                self._end(node, Fate.OPEN)
        heapify(self.waiting)

    def probe(self) -> None:
        """Compile a sample of layouts for the target. Raises PlanError if it supports none of them."""
        if self.backend is None:
            return
        refusals = None
        for point in self._probes():
            try:
                run_by(self.bounds.sharded(point), self.backend)
            except PlanError as error:
                refusals = refusals or error
            else:
                self.target = self.backend.target
                return
        if refusals is not None:
            raise refusals

    def _probes(self) -> Iterator[Point]:
        """Yield at most PROBES valid layouts from the whole space: meshes with few axes in use first, with varying
        other choices."""
        space, bounds = self.space, self.bounds
        met = itertools.takewhile(lambda _: not self.ended(), space.laid())
        some = itertools.islice(met, PROBED if self.large else None)
        meshes = sorted(
            (laid for laid in some if self.constraints.broken(*laid) is None),
            key=lambda laid: sum(n > 1 for n in laid[0]),
        )
        for i, (sizes, order) in enumerate(meshes[:: -(-len(meshes) // PROBES) or 1]):
            variant = i % len(space.variants)
            batches = space.batches(bounds.data_parallel(variant, sizes))
            pipelines = space.pipelines(bounds.ranks(sizes))
            points = [
                Point(variant, sizes, *batches[i % len(batches)], pipelines[(i + j) % len(pipelines)], order)
                for j in range(len(pipelines))
                if batches
            ]
            yield from itertools.islice((p for p in points if self.constraints.broken_at(p) is None), 1)

    def nearest_miss(self) -> Candidate | None:
        """Return the valid layout that needs the least memory, or one that fits; None if no layout is valid.

        Layouts are costed in the order of their memory bounds until no bound is below the best, or one fits. With a
        target, only the first NEAREST_MISSES are costed.
        """
        best: Candidate | None = None
        costed = 0
        unsaid: list[Diagnostic] = []  # of layouts that the search left out for their memory before it asked its rules
        waiting: list[tuple[float, int, LayoutShape | tuple[LayoutShape, Point]]] = []
        families = self._families(count=False)
        for shape in itertools.chain.from_iterable(self.bounds.shapes(family) for family in families):
            waiting.append((shape.first_bytes / GIB, len(waiting), shape))
            if len(waiting) > MOST_WAITING and self.large:
                self.cut_short = self.cut_short or "memory"
                break
        heapify(waiting)
        number = len(waiting)
        least = float("inf")
        while not self.ended() and waiting and waiting[0][0] < least and least > self.room_gib:
            node = heappop(waiting)[2]
            self._report(len(waiting))
            if isinstance(node, LayoutShape):
                for gib, point in self.bounds.points(node):
                    number += 1
                    heappush(waiting, (gib, number, (node, point)))
            elif (broken := self.constraints.broken_at(node[1])) is not None:
                unsaid.append(broken)
            else:
                shape, point = node
                found = self._costed(point, self.bounds.layout(point, shape), least)
                if found is not None and (best is None or found.memory_gib < best.memory_gib):
                    best, least = found, found.memory_gib
                costed += 1
                if self.backend is not None and best is not None and costed >= NEAREST_MISSES:
                    break
        for broken in unsaid if not self.refusals else ():
            self._refuse(broken, 1)
        return best

    def may_fit(self, candidate: Candidate) -> bool:
        """True if a layout fits at the lower end of its predicted memory."""
        costed = cost_plan(self.bounds.sharded(candidate.point), backend=self.backend)
        return costed.may_fit(self.room_gib)

    def _report(self, waiting: int) -> None:
        self.opened += 1
        if self.on_progress is not None and self.opened % REPORT_EVERY == 0:
            self.on_progress(self.costed, waiting)

    def _open(self, bound_s: float, bound_gib: float, node: Node | Point) -> bool:
        """Return False if the bounds of `node` exclude it: it exceeds the memory limit, is too slow for the result, or
        is dominated by other layouts."""
        if bound_gib > self.open_gib:
            self._end(node, Fate.MEMORY)
            return False
        if bound_s > self._limit_s * self.slack or self._beaten(bound_s, bound_gib):
            self._end(node, Fate.SLOWER)
            return False
        return True

    def _end(self, node: Node | Point, fate: Fate, why: tuple[str, str] = ("", "")) -> None:
        """Note that a layout of the mesh of `node` ends by `fate`; `why` is the refusal if it is one."""
        at = node.family if isinstance(node, LayoutShape) else node.point if isinstance(node, LeafNode) else node
        mesh = at.sizes, at.order
        self._meshes[mesh] = max(self._meshes.get(mesh, (Fate.RULE, ("", ""))), (fate, why))

    def fates(self) -> dict[str, int]:
        """Return how many meshes end in which way, by the layout of a mesh that came nearest to an answer, and count
        the refused ones with their refusals."""
        for _, node in self.waiting:  # where the search was cut short
            self._end(node, Fate.OPEN)
        for c in (*self.best, *_front(self.fitting)):
            self._end(c.point, Fate.FOUND)
        for fate, why in self._meshes.values():
            if fate in (Fate.RULE, Fate.TARGET):
                self.refusals[why] = replace(self.refusals[why], meshes=self.refusals[why].meshes + 1)
        every = Counter(fate for fate, _ in self._meshes.values())
        return {fate.name.lower(): every[fate] for fate in reversed(Fate) if every[fate]}

    def _wait(self, bound_s: float, bound_gib: float, node: Node) -> None:
        self.met += 1
        if self._open(bound_s, bound_gib, node):
            heappush(self.waiting, ((bound_s, bound_gib, self.met), node))

    def _take(self, node: Node, bound_s: float, bound_gib: float) -> None:
        """Add the children of a node to the open nodes; cost a node without children."""
        if isinstance(node, LayoutFamily):
            for shape in self.bounds.shapes(node, self.open_gib):
                self._wait(self.bounds.critical_path_s(shape) / node.sequences, shape.first_bytes / GIB, shape)
        elif isinstance(node, LayoutShape):
            for gib, point in self.bounds.points(node):
                if self._open(bound_s, gib, point):
                    layout = self.bounds.layout(point, node)
                    nearer_s, exact = self.bounds.time_s(layout, node), self.bounds.in_lockstep(node)
                    self._wait(max(bound_s, nearer_s / point.sequences), gib, LeafNode(point, layout, exact))
        elif not node.simulated_bound:
            point, layout = node.point, node.layout
            makespan_s = makespan_lower_bound_s(
                layout.plan.split, layout.division.held, layout.plan.microbatches, layout.work.times
            )
            nearer_s = self.bounds.total_s(layout, makespan_s) / point.sequences
            self._wait(max(bound_s, nearer_s), bound_gib, LeafNode(point, layout, simulated_bound=True))
        else:
            candidate = self._cost(node)
            if candidate is not None:
                self._keep(candidate, bound_gib if self.backend else candidate.memory_gib)

    def _keep(self, candidate: Candidate, bound_gib: float) -> None:
        self.fitting.append(candidate)
        self._fitting_bounds.append((candidate.s_per_sequence, bound_gib))
        self._end(candidate.point, Fate.SLOWER)
        found = rows(sorted([*self.best, candidate], key=_order), self.top)
        self.best = sorted(itertools.chain(*found), key=_order)
        if len(found) == self.top:
            last = found[-1][0]
            self._last_s = _next_digit_s(last.time_s) / last.point.sequences
            self._limit_s = max(self._last_s, NEAR * self.best[0].s_per_sequence)

    def _families(self, *, count: bool = True) -> Iterator[LayoutFamily]:
        """Yield the layouts of every valid mesh, in families. With `count`, count the layouts of all meshes as
        decided."""
        for number, (sizes, order) in enumerate(self.space.laid()):
            if self.ended():
                return
            if self.large and number % PART == 0:
                self._forget_meshes()
            self._report(len(self.waiting))
            self.decided += self.bounds.count(sizes) if count else 0
            broken = self.constraints.broken(sizes, order)
            if count:
                self._note_refusals(sizes, order, broken)
            if broken is None:
                yield from self.bounds.families(sizes, order)

    def _note_refusals(self, sizes: tuple[int, ...], order: int, broken: Diagnostic | None) -> None:
        """Count the layouts on this mesh that are invalid: all of them if the mesh breaks a rule (`broken`), else those
        whose batch cannot be divided into microbatches."""
        at = Point(0, sizes, 0, 0, None, order)
        if broken is not None:
            self._end(at, Fate.RULE, self._refuse(broken, self.bounds.count(sizes)))
            return
        for variants in self.bounds.variant_groups:
            data = self.bounds.data_parallel(variants[0], sizes)
            if not self.space.batches(data):
                message = f"no microbatch divides the batch over {data:,} data-parallel ranks"
                self._end(at, Fate.RULE, self._refuse(self.space.refusal("E0205", message), len(variants)))

    def _refuse(self, found: Diagnostic, layouts: int) -> tuple[str, str]:
        """Count `layouts` as invalid for the reason `found`, and return its key in `refusals`. Messages that differ
        only in numbers, or in the sentence that they quote, are one reason."""
        why = found.code, re.sub(r"`[^`]*`|[\d,.]+", "#", found.message)
        known = self.refusals.get(why)
        before = known.layouts if known else 0
        first = known.message if known else found.message
        self.refusals[why] = Refused(code=found.code, message=first, layouts=before + max(layouts, 1))
        return why

    def _beaten(self, bound_s: float, bound_gib: float) -> bool:
        """True if the node is dominated: enough costed layouts are faster, and one of them also needs less memory."""
        if bound_s <= self._last_s * self.slack:
            return False
        return any(s <= bound_s and gib <= bound_gib for s, gib in self._fitting_bounds)

    def _cost(self, close: LeafNode) -> Candidate | None:
        """Return the layout as costed by `planc cost`; None if it breaks a rule or does not fit."""
        point, layout = close.point, close.layout
        if (broken := self.constraints.broken_at(point)) is not None:
            self._end(point, Fate.RULE, self._refuse(broken, 1))
            return None
        candidate = self._costed(point, layout, self.room_gib)
        if candidate is not None and candidate.memory_gib > self.room_gib:
            self._end(point, Fate.MEMORY)
            return None
        return candidate

    def _costed(self, point: Point, layout: LayoutCost, room_gib: float = float("inf")) -> Candidate | None:
        """Return the layout with its step and memory; None if the target does not support it, or its tensors exceed
        `room_gib`."""
        self.costed += 1
        if self.backend is None:
            step, gib = layout.run()
        else:
            try:
                sharded = run_by(self.bounds.sharded(point), self.backend)
            except PlanError as error:
                self.refused += 1
                self._end(point, Fate.TARGET, self._refuse(error.diagnostics[0], 1))
                return None
            if self.backend.exceeds(sharded, layout.timeline.in_flight, room_gib * GIB):
                self._end(point, Fate.MEMORY)
                return None
            rows = self.backend.realise(sharded)
            used = memory(sharded, layout.timeline, self.backend, rows)
            if used.per_device_gib.total > room_gib:
                self._end(point, Fate.MEMORY)
                return None
            costed = cost_plan(sharded, rows, backend=self.backend)
            step, gib = costed.step, costed.memory.per_device_gib.total
        run = run_of(self.space.plan_of(point), step)
        return Candidate(self.space.text_of(point), self.space.values_of(point), step, gib, point, run=run)
