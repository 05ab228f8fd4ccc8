"""Where a mesh axis lies: how many of its members share a node, which level of the network it crosses.

Axes are laid on the machine outermost first, so the innermost axis fills a node (or one ring of a
torus). Nothing here enumerates devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

from planc.ir.hardware import Cluster, Level
from planc.ir.mesh import Mesh


@dataclass(frozen=True, slots=True)
class Span:
    """A group of `inside * outside` devices: `inside` in each of `outside` nodes or slices.

    Bandwidths are one way, per device, with efficiency; `rings` counts the torus dimensions used.
    """

    inside: int
    outside: int
    level: str
    inside_bytes_per_s: float
    inside_latency_s: float
    outside_bytes_per_s: float
    outside_latency_s: float
    rings: int = 1

    @property
    def size(self) -> int:
        return self.inside * self.outside


def span_of(mesh: Mesh, cluster: Cluster, axes: tuple[str, ...]) -> Span:
    """How a group over these axes lies on the cluster."""
    inside = prod(_inside(mesh, cluster, a) for a in axes)
    outside = prod(mesh.sizes[a] for a in axes) // inside
    reach = max((a.stride * a.size for a in mesh.axes if a.name in axes), default=1)
    level = _level(cluster, reach) if outside > 1 else None
    near = cluster.link
    bandwidth, rings, near_name = _near(mesh, cluster, axes)
    far = 0.0
    if level is not None:
        # All groups of a node send at once, so a device has its share of the node's way out.
        per_node = level.bandwidth_bytes_per_s * level.efficiency / level.oversubscription
        far = per_node / min(cluster.devices_per_node, _senders(mesh, cluster))
    return Span(
        inside=inside,
        outside=outside,
        level=level.name if level else near_name,
        inside_bytes_per_s=bandwidth,
        inside_latency_s=near.latency_s,
        outside_bytes_per_s=far,
        outside_latency_s=level.latency_s if level else 0.0,
        rings=rings,
    )


def _inside(mesh: Mesh, cluster: Cluster, axis: str) -> int:
    """How many members of one group along `axis` share a node (or slice)."""
    here = next(a for a in mesh.axes if a.name == axis)
    room = cluster.devices_per_node // here.stride
    return max(1, min(here.size, room))


def _senders(mesh: Mesh, cluster: Cluster) -> int:
    return min(cluster.devices_per_node, mesh.devices)


def _level(cluster: Cluster, reach: int) -> Level | None:
    """The level at which `reach` neighbouring devices meet."""
    nodes = ceil(reach / cluster.devices_per_node)
    width = 1
    for level in cluster.levels:
        width *= level.width
        if nodes <= width:
            return level
    return cluster.levels[-1] if cluster.levels else None


def _near(mesh: Mesh, cluster: Cluster, axes: tuple[str, ...]) -> tuple[float, int, str]:
    """Bandwidth inside a node or slice: one link, or the rings of the torus the axes use."""
    link = cluster.link
    one = link.bandwidth_bytes_per_s * link.efficiency
    if cluster.kind == "node":
        return one, 1, link.name
    dims = [d for a in axes for d in torus_dims(mesh, cluster)[a]]
    if not dims:
        return one, 1, link.name
    # A ring with wrap-around sends both ways; a line has half of that.
    ways = [2 if wrapped else 1 for wrapped in dims]
    return one * sum(ways), len(dims), link.name


def torus_dims(mesh: Mesh, cluster: Cluster) -> dict[str, tuple[bool, ...]]:
    """For each axis, the torus dimensions it uses: True for one it fills with wrap-around.

    Innermost axes choose first. An axis prefers dimensions whose lengths multiply to its size; what
    does not fit is cut out of a longer dimension, which breaks that ring.
    """
    free = sorted(zip(cluster.shape, cluster.wrap, strict=True), key=lambda d: d[0])
    placed: dict[str, tuple[bool, ...]] = {}
    for axis in reversed(mesh.axes):
        size = axis.size
        chosen = _exact(free, size) if size > 1 else []
        if chosen:
            for dim in chosen:
                free.remove(dim)
            placed[axis.name] = tuple(wrapped for _, wrapped in chosen)
        else:
            placed[axis.name] = _cut(free, size)
    return placed


def _exact(free: list[tuple[int, bool]], size: int) -> list[tuple[int, bool]]:
    """Whole dimensions whose lengths multiply to `size`; the fewest of them."""
    from itertools import combinations

    for count in range(1, len(free) + 1):
        for chosen in combinations(free, count):
            if prod(n for n, _ in chosen) == size:
                return list(chosen)
    return []


def _cut(free: list[tuple[int, bool]], size: int) -> tuple[bool, ...]:
    """Take `size` out of the remaining dimensions, shortest first; cut rings have no wrap."""
    used: list[bool] = []
    for index, (length, wrapped) in enumerate(list(free)):
        if size <= 1:
            break
        part = min(size, length)
        if length % part:
            continue
        used.append(wrapped and part == length)
        free[index] = (length // part, wrapped and part == 1)
        size //= part
    free[:] = [d for d in free if d[0] > 1]
    return tuple(used)
