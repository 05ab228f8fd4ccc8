"""Tests layouts of a search space against the rules of the language, with cached results."""

from __future__ import annotations

from planc.checks import broken_rule
from planc.diag.diagnostic import Diagnostic
from planc.ir.cache import Cache, cached_on
from planc.searching.lower_bounds import Bounds
from planc.searching.space import Point, Space


class Constraints:
    """The rules of the language for the layouts of a space. Results are cached per mesh and per batch."""

    def __init__(self, space: Space, bounds: Bounds) -> None:
        self.space, self.bounds = space, bounds
        self.cache = Cache()

    def broken(self, sizes: tuple[int, ...], order: int) -> Diagnostic | None:
        """Return the diagnostic of a rule that all layouts on this mesh break; None if there is no such rule. `sizes`
        are the axis sizes, `order` is the index of the axis order."""
        space, data, ranks = self.space, self.bounds.data_parallel(0, sizes), self.bounds.ranks(sizes)
        pipelines = space.pipelines(ranks)
        if not pipelines:
            return space.refusal("E0401", f"{space.plan.model.layers} layers cannot fill the stages of {ranks} ranks")
        return self._mesh(Point(0, sizes, data, 1, pipelines[0], order))

    def broken_at(self, point: Point) -> Diagnostic | None:
        """Return the diagnostic of a rule that the layout `point` breaks; None if it breaks none."""
        return self._mesh(point) or self._batch(point)

    @cached_on(lambda constraints, point: (constraints.cache, (point.variant, point.sizes, point.order)))
    def _mesh(self, point: Point) -> Diagnostic | None:
        return broken_rule(self.space.plan_of(point), of_batch=False)

    @cached_on(
        lambda constraints, p: (
            constraints.cache,
            (p.variant, p.sizes, p.sequences, p.microbatch, p.pipeline and p.pipeline.text),
        )
    )
    def _batch(self, point: Point) -> Diagnostic | None:
        return broken_rule(self.space.plan_of(point), of_batch=True)
