"""The machine as a graph of links between chips, switches and network cards, with each link's bandwidth and latency.

`machine_links` builds it from a cluster. `planc.graph.networks` converts it to networkx and to file formats; only that
module's functions import networkx, so checking a plan does not need it.
"""

from planc.graph.from_cluster import machine_links
from planc.graph.links import Cable, LinkKind, MachineLinks, Vertex

__all__ = ["Cable", "LinkKind", "MachineLinks", "Vertex", "machine_links"]
