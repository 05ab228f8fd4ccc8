"""Validity constraints of a space: the rules of the language, cached for each mesh and for each batch."""

from __future__ import annotations

from planc.checks import breaks
from planc.ir.cache import Cache, cached_on
from planc.search.lower_bounds import Bounds
from planc.search.space import Point, Space

OF_THE_BATCH = {"E0205", "E0402", "E0413"}
"""Rules on the batch, the microbatches and the schedule, which differ from point to point of one mesh."""


class Constraints:
    """Validity constraints, cached per mesh and per batch."""

    def __init__(self, space: Space, bounds: Bounds) -> None:
        self.space, self.bounds = space, bounds
        self.cache = Cache()

    def allow(self, sizes: tuple[int, ...], order: int) -> bool:
        """True if the mesh with these `sizes` in this `order` breaks no rule that holds for every batch and
        schedule."""
        space, data = self.space, self.bounds.data_parallel(0, sizes)
        pipelines = space.pipelines(self.bounds.ranks(sizes))
        return bool(pipelines) and self._mesh(Point(0, sizes, data, 1, pipelines[0], order))

    def allow_point(self, point: Point) -> bool:
        """True if `point` breaks no rule."""
        return self._mesh(point) and self._batch(point)

    @cached_on(lambda constraints, point: (constraints.cache, (point.variant, point.sizes, point.order)))
    def _mesh(self, point: Point) -> bool:
        return not breaks(self.space.plan_of(point), besides=OF_THE_BATCH)

    @cached_on(lambda constraints, p: (constraints.cache, (p.sizes, p.sequences, p.microbatch, id(p.pipeline))))
    def _batch(self, point: Point) -> bool:
        return not breaks(self.space.plan_of(point), among=OF_THE_BATCH)
