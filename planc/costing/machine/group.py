"""Groups of devices with the network levels that they span, in closed form or from a graph of links."""

from __future__ import annotations

from planc.costing.machine.topology import DeviceGroup, tower_group
from planc.ir.hardware import Cluster
from planc.ir.mesh import Mesh


def device_group(mesh: Mesh, cluster: Cluster, axes: tuple[str, ...]) -> DeviceGroup:
    """Return the group of devices along `axes`, with the network levels that it spans, innermost first.

    Args:
        mesh: the mesh, whose innermost axis fills a node first.
        cluster: the machine. One that is described as a graph is routed link by link.
        axes: axes of the mesh, or of one of its views (other factorizations of some mesh axes).

    >>> group = device_group(plan.mesh, plan.cluster, ("fsdp", "tp"))  # mesh pp 4 > fsdp 16 > tp 8, nodes of 8
    >>> group.size, group.level, [(p.name, p.members) for p in group.levels]
    (128, 'leaf', [('nvlink4', 8.0), ('leaf', 16.0)])
    """
    if cluster.is_routed:
        from planc.costing.routes import routed_group

        return routed_group(mesh, cluster, axes)
    return tower_group(mesh, cluster, axes)
