"""Exhaustive search: costs every layout of a space, without bounds."""

from __future__ import annotations

from collections.abc import Iterator

from planc.ir.report import Step
from planc.searching.constraints import Constraints
from planc.searching.lower_bounds import Bounds, LayoutShape
from planc.searching.space import Point, Space


def every(space: Space, most: int | None = None) -> Iterator[tuple[Point, Step, float]]:
    """Yield each valid layout of `space` with its step and its peak memory (GiB), including layouts that do not fit.

    `most` limits the number of layouts, which are then spread evenly over the space. The result is sorted by pipeline
    and number of microbatches.
    """
    bounds = Bounds(space)
    constraints = Constraints(space, bounds)
    found = [
        (shape, Point(variant, family.sizes, family.sequences, family.microbatch, shape.pipeline, family.order))
        for sizes, order in space.laid()
        if constraints.broken(sizes, order) is None
        for family in bounds.families(sizes, order)
        for shape in bounds.shapes(family)
        for variant in family.variants
    ]
    found = found[:: (-(-len(found) // most) if most else 0) or 1]
    for shape, point in sorted(found, key=_pipeline):
        if constraints.broken_at(point) is None:
            yield point, *bounds.layout(point, shape).run()


def _pipeline(at: tuple[LayoutShape, Point]) -> tuple[int, int, str]:
    shape, point = at
    return shape.family.ranks, shape.family.microbatches, point.pipeline.text if point.pipeline else ""
