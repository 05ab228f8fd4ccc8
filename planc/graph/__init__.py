"""The machine as a graph of links: chips, switches and cards, what a link carries each way, and what it waits.

`machine_links` makes it from a cluster; `planc.graph.networks` makes a networkx graph of it, and writes that in the
formats of other tools. networkx is loaded by those functions alone: checking a plan needs none of it.
"""

from planc.graph.from_cluster import machine_links
from planc.graph.links import Cable, LinkKind, MachineLinks, Vertex

__all__ = ["Cable", "LinkKind", "MachineLinks", "Vertex", "machine_links"]
