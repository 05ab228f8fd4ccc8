"""Converts other tools' descriptions of a machine to a hardware file with a graph of links.

Supported are `nvidia-smi topo -m`, NCCL's topology and graph XML, Slurm's topology.conf and topology.yaml, the output
of `ibnetdiscover`, and the list printed by `jax.devices()`. Bandwidths and peak rates that a text lacks are those of a
machine in planc's library.
"""

from planc.interop.topologies.read import MACHINES, read_topology

__all__ = ["MACHINES", "read_topology"]
