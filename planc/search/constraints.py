"""Which layouts of a space break no rule of the language. Most rules hold for all batches and schedules of a mesh."""

from __future__ import annotations

from planc.checks import breaks
from planc.ir.cache import Cache, cached_on
from planc.search.lower_bounds import Bounds
from planc.search.space import Point, Space

OF_THE_BATCH = {"E0205", "E0402", "E0413"}
"""Rules on the batch, the microbatches and the schedule, which differ from point to point of one mesh."""


class Laws:
    """The rules for the points of a space, asked once for what has them in common."""

    def __init__(self, space: Space, bounds: Bounds) -> None:
        self.space, self.bounds = space, bounds
        self.cache = Cache()

    def allow(self, sizes: tuple[int, ...]) -> bool:
        """Whether a mesh breaks no rule that holds for every batch and schedule."""
        space, data = self.space, self.bounds.data_parallel(0, sizes)
        pipelines = space.pipelines(self.bounds.ranks(sizes))
        return bool(pipelines) and self._mesh(Point(0, sizes, data, 1, pipelines[0]))

    def allow_point(self, point: Point) -> bool:
        """Whether a point breaks no rule."""
        return self._mesh(point) and self._batch(point)

    @cached_on(lambda laws, point: (laws.cache, (point.variant, point.sizes)))
    def _mesh(self, point: Point) -> bool:
        return not breaks(self.space.plan_of(point), besides=OF_THE_BATCH)

    @cached_on(lambda laws, p: (laws.cache, (p.sizes, p.sequences, p.microbatch, id(p.pipeline))))
    def _batch(self, point: Point) -> bool:
        return not breaks(self.space.plan_of(point), among=OF_THE_BATCH)
