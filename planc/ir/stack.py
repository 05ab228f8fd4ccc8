"""The software that runs a plan: decided once, when its layouts are derived, and passed on as a value."""

from __future__ import annotations

from planc.diag.fast_dataclass import dataclass
from planc.ir.hardware import Cluster
from planc.ir.policy import Policy
from planc.ir.target import NO_TARGET, AnyTarget, Target


@dataclass(frozen=True, kw_only=True)
class Stack:
    """The software that runs a plan, as far as its cost depends on it."""

    policy: Policy
    """The framework's decisions where the plan says nothing."""
    xla: bool
    """True if XLA compiles a step as one program, as on TPUs: no host launches single kernels, and XLA decides which
    buffers share memory. False if torch launches kernels one by one."""
    lockstep: bool = False
    """True if all ranks of a pipeline run one program of a target (SPMD): they wait for each other in every tick."""

    @property
    def own(self) -> bool:
        """True if planc's own programs run the plan, False if a framework that `realise as` names does."""
        return self.policy.name == "planc"

    @property
    def target(self) -> AnyTarget:
        """The target for which a plan is costed by default: the target of its cluster; none if the plan is realised by
        another framework, because the programs of targets are planc's own."""
        return NO_TARGET if not self.own else "xla" if self.xla else "cuda"


def target_of_cluster(cluster: Cluster) -> Target:
    """Return the target whose programs run on `cluster`: xla on TPUs, which are linked as a torus, and cuda on nodes.

    Processes of this machine (`cpu_local`) run both; its hardware file describes processes that communicate over gloo,
    one per device, which is how torch runs there, while JAX has all devices in one process.
    """
    return "xla" if cluster.has_tpus else "cuda"
