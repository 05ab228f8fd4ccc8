"""A lower bound for any algorithm, from the minimum cut between one member of a group and all others (networkx).

Source: Ford and Fulkerson 1956; https://networkx.org/documentation/stable/reference/algorithms/flow.html.
"""

from __future__ import annotations

from collections.abc import Sequence

from planc.graph import MachineLinks
from planc.graph.networks import network


def gather_bound_s(links: MachineLinks, group: Sequence[int]) -> float:
    """Return a lower bound on the seconds per byte of an all-gather over the devices `group` of `links`: each must
    receive the bytes that it does not have.

    The bound also holds for a reduce-scatter and an all-to-all, in which each member receives as many bytes.

    >>> from planc.graph import machine_links
    >>> 1 / gather_bound_s(machine_links(h100_node), range(8)) / 1e9  # 450 GB/s for 7/8 of the buffer
    514.2857142857143
    """
    import networkx as nx

    graph = network(links)
    names = [links.vertices[links.devices[i]].name for i in group]
    graph.add_node("every other member")
    worst = 0.0
    for name in names:
        graph.remove_node("every other member")
        for other in names:
            if other != name:
                graph.add_edge("every other member", other)
        cut, _ = nx.minimum_cut(graph, "every other member", name, capacity="bytes_per_s")
        worst = max(worst, (1 - 1 / len(names)) / cut)
    return worst
