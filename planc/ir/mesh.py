"""The device mesh: named axes, outermost first. A view is another factorization of some of them, for the experts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod

from planc.diag.fast_dataclass import dataclass
from planc.ir.base import Cause, Value
from planc.ir.cache import Computed
from planc.ir.field_types import Name, Positive


@dataclass(frozen=True, kw_only=True)
class Axis(Value):
    """One mesh axis. `stride` is the distance in ranks between neighbours along it."""

    name: Name
    size: Positive
    stride: Positive

    def place_of(self, rank: int) -> int:
        """Return the coordinate of `rank` along this axis."""
        return rank // self.stride % self.size


@dataclass(frozen=True, kw_only=True)
class View(Value):
    """`view AXES of AXES for REGIONS`: other axes over the ranks of adjacent mesh axes.

    In `regions` the axes of the view replace those in `of`; they exist only there.
    """

    axes: tuple[Axis, ...]
    of: tuple[Name, ...]
    regions: tuple[Name, ...]
    cause: Cause

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(a.name for a in self.axes)


@dataclass(frozen=True, kw_only=True)
class Mesh(Value):
    """Axes outermost first; rank = sum of coordinate * stride. `views` factor the same ranks differently."""

    axes: tuple[Axis, ...]
    views: tuple[View, ...] = ()
    cause: Cause

    @classmethod
    def of(cls, sizes: dict[str, int], cause: Cause) -> Mesh:
        """Return a mesh without views. `sizes` has the number of ranks of each axis, outermost first; `cause` is the
        sentence that declares the mesh."""
        return cls(axes=strided(sizes), cause=cause)

    def resized(self, sizes: Iterable[int]) -> Mesh:
        """Return the mesh with other axis sizes. `sizes` has first the sizes of the mesh axes, outermost first, and
        then those of the axes of each view."""
        named = dict(zip(self.every, sizes, strict=True))
        mesh = Mesh.of({a.name: named[a.name] for a in self.axes}, self.cause)
        if not self.views:
            return mesh
        return replace(mesh, views=tuple(_resized_view(view, mesh, named) for view in self.views))

    def reordered(self, names: Sequence[str]) -> Mesh:
        """Return the mesh with its axes, and the axes of each view, in the order of `names`, which lists all axes. The
        mesh axes that a view factorizes must stay adjacent and in order; axes of size 1 do not count."""
        mesh = Mesh.of({name: self.sizes[name] for name in names if name in self.sizes}, self.cause)
        if not self.views:
            return mesh
        named = {name: self.every[name].size for name in names}
        in_order = (replace(v, axes=tuple(sorted(v.axes, key=lambda a: names.index(a.name)))) for v in self.views)
        return replace(mesh, views=tuple(_resized_view(view, mesh, named) for view in in_order))

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The size of each mesh axis by name, without the axes of views."""
        return {axis.name: axis.size for axis in self.axes}

    @cached_property
    def every(self) -> dict[str, Axis]:
        """Each axis by name: mesh axes and the axes of views."""
        return {a.name: a for group in (self.axes, *(v.axes for v in self.views)) for a in group}

    @cached_property
    def named_sizes(self) -> tuple[str | int, ...]:
        """The names and then the sizes of all axes, in order. If they are equal for two meshes, so are the coordinates
        of each rank."""
        return (*self.every, *(axis.size for axis in self.every.values()))

    def axis(self, name: str) -> Axis:
        """Return the mesh axis or view axis called `name`. Raises KeyError if there is none."""
        return self.every[name]

    def view_of(self, region: str) -> View | None:
        """Return the view whose axes replace mesh axes in `region` (a part of the model), or None."""
        return next((v for v in self.views if region in v.regions), None)

    def exists(self, axis: str, region: str) -> bool:
        """True if `axis` exists in `region` of the model. Where a view holds, its axes exist, and the mesh axes that it
        factorizes do not."""
        view = self.view_of(region)
        if axis in self.sizes:
            return view is None or axis not in view.of
        return view is not None and axis in view.names

    @property
    def devices(self) -> int:
        return prod(self.sizes.values())

    def size(self, *names: str) -> int:
        """Return the number of ranks along the axes `names` together, the product of their sizes; 1 without names."""
        return self._sizes[names]

    @cached_property
    def _sizes(self) -> Computed[tuple[str, ...], int]:
        return Computed(lambda names: prod([self.every[name].size for name in names]))

    def place_of(self, rank: int, names: Iterable[str]) -> int:
        """Return the index of `rank` along the axes `names` together; the first of them is the outermost."""
        place = 0
        for axis in (self.every[name] for name in names):
            place = place * axis.size + axis.place_of(rank)
        return place

    def in_order(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the axes `names`, outermost first, without axes of size 1. Raises KeyError for an unknown name."""
        return self._orders[tuple(names)]

    @cached_property
    def _orders(self) -> Computed[tuple[str, ...], tuple[str, ...]]:
        return Computed(self._in_order)

    def _in_order(self, names: tuple[str, ...]) -> tuple[str, ...]:
        wanted = {n for n in names if self.every[n].size > 1}
        return tuple(n for n in self._outermost_first if n in wanted)

    @cached_property
    def _outermost_first(self) -> tuple[str, ...]:
        return tuple(sorted(self.every, key=lambda n: -self.every[n].stride))


def are_neighbours(sizes: Mapping[str, int], covered: Sequence[str]) -> bool:
    """True if the axes `covered` are adjacent and in this order among the mesh axes, whose `sizes` are given outermost
    first. Axes of size 1 between them do not count.

    >>> are_neighbours({"dp": 2, "cp": 1, "tp": 4}, ["dp", "tp"]), are_neighbours({"dp": 2, "tp": 4}, ["tp", "dp"])
    (True, False)
    """
    names = [name for name, size in sizes.items() if size > 1 or name in covered]
    first = names.index(covered[0])
    return names[first : first + len(covered)] == [*covered]


def _resized_view(view: View, mesh: Mesh, sizes: dict[str, int]) -> View:
    innermost = min(mesh.axis(name).stride for name in view.of)
    return replace(view, axes=strided({a.name: sizes[a.name] for a in view.axes}, innermost))


def strided(sizes: dict[str, int], innermost: int = 1) -> tuple[Axis, ...]:
    """Return axes with these `sizes`, outermost first; neighbours along the last axis are `innermost` ranks apart."""
    axes, stride = [], prod(sizes.values()) * innermost
    for name, size in sizes.items():
        stride //= size
        axes.append(Axis(name=name, size=size, stride=stride))
    return tuple(axes)
