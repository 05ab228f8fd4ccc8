"""Texts of other tools that describe a machine, read as a hardware file with a graph of links.

`nvidia-smi topo -m`, NCCL's topology and graph XML, Slurm's topology.conf and topology.yaml, what `ibnetdiscover`
prints, and the list that `jax.devices()` prints. The hardware file is checked by the language's own reader: what a
text leaves out (bandwidths, peaks) is that of a bundled machine.
"""

from planc.interop.topologies.read import MACHINES, read_topology

__all__ = ["MACHINES", "read_topology"]
