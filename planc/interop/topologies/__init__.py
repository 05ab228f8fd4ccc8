"""Reads other tools' descriptions of a machine as a hardware file with a graph of links.

Supported are `nvidia-smi topo -m`, NCCL's topology and graph XML, Slurm's topology.conf and topology.yaml, the output
of `ibnetdiscover`, and the list printed by `jax.devices()`. The language's own reader checks the hardware file.
Bandwidths and peak rates that a text lacks are taken from a bundled machine.
"""

from planc.interop.topologies.read import MACHINES, read_topology

__all__ = ["MACHINES", "read_topology"]
