"""The target that a plan is costed as: that of its cluster's chips, unless a sentence or the caller says otherwise."""

from __future__ import annotations

from planc.ir.hardware import Cluster
from planc.ir.target import Target


def target_of_cluster(cluster: Cluster) -> Target:
    """The target whose programs run on a cluster: xla on TPUs, which are linked as a torus, and cuda on nodes.

    Processes of this machine (`cpu_local`) run both; its hardware file describes processes that talk over gloo, one
    a device, which is how torch runs there, while JAX has all devices in one process.
    """
    return "xla" if cluster.kind == "torus" else "cuda"
