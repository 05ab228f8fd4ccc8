"""The device mesh: named axes, outermost first."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from planc.ir.base import Cause, Value


@dataclass(frozen=True, kw_only=True)
class Axis(Value):
    """One mesh axis. `stride` is how many ranks lie between neighbours along it."""

    name: str
    size: int
    stride: int


@dataclass(frozen=True, kw_only=True)
class Mesh(Value):
    """Axes outermost first; rank = sum of coordinate * stride."""

    axes: tuple[Axis, ...]
    cause: Cause

    @classmethod
    def of(cls, sizes: dict[str, int], cause: Cause) -> Mesh:
        axes, stride = [], prod(sizes.values())
        for name, size in sizes.items():
            stride //= size
            axes.append(Axis(name=name, size=size, stride=stride))
        return cls(axes=tuple(axes), cause=cause)

    @cached_property
    def sizes(self) -> dict[str, int]:
        return {axis.name: axis.size for axis in self.axes}

    @property
    def devices(self) -> int:
        return prod(self.sizes.values())

    def size(self, *names: str) -> int:
        """The number of ranks over these axes together; 1 for none."""
        return prod(self.sizes[name] for name in names)

    def in_order(self, names: tuple[str, ...] | set[str] | frozenset[str]) -> tuple[str, ...]:
        """The given axes, outermost first, without those of size 1."""
        return tuple(a.name for a in self.axes if a.name in names and a.size > 1)
