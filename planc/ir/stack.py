"""Who runs a plan: asked once, when its layouts are derived, and handed on as a value."""

from __future__ import annotations

from planc.diag.fast_dataclass import dataclass
from planc.ir.hardware import Cluster
from planc.ir.policy import Policy
from planc.ir.target import NO_TARGET, AnyTarget, Target


@dataclass(frozen=True, kw_only=True)
class Stack:
    """The software that runs a plan, as far as its cost depends on it."""

    policy: Policy
    """Decisions of its framework where the plan says nothing."""
    xla: bool
    """True if XLA compiles a step as one program, as on TPUs: no host starts kernels one by one, and it chooses which
    buffers share memory. False where torch starts one kernel after the other."""
    lockstep: bool = False
    """True if all ranks of a pipeline run one program, a target's: they wait for each other in every tick."""

    @property
    def own(self) -> bool:
        """True if planc's own programs run the plan, and no framework that `realise as` names."""
        return self.policy.name == "planc"

    @property
    def target(self) -> AnyTarget:
        """The target that a plan is costed for where nobody names one: its cluster's; none where another framework
        realises it, as the programs of targets are planc's own."""
        return NO_TARGET if not self.own else "xla" if self.xla else "cuda"


def target_of_cluster(cluster: Cluster) -> Target:
    """The target whose programs run on a cluster: xla on TPUs, which are linked as a torus, and cuda on nodes.

    Processes of this machine (`cpu_local`) run both; its hardware file describes processes that talk over gloo, one
    a device, which is how torch runs there, while JAX has all devices in one process.
    """
    return "xla" if cluster.has_tpus else "cuda"
