"""The framework and compiler that run a plan, as far as the plan's cost depends on them."""

from __future__ import annotations

from planc.diag.fast_dataclass import dataclass
from planc.ir.hardware import Cluster, Library
from planc.ir.policy import Policy
from planc.ir.target import NO_TARGET, AnyTarget, Target


@dataclass(frozen=True, kw_only=True)
class Stack:
    """The framework and compiler that run a plan, as far as its cost depends on them."""

    policy: Policy
    """The framework's decisions where the plan says nothing."""
    xla: bool
    """True if XLA compiles a step as one program, as on TPUs: no host launches single kernels, and XLA decides which
    buffers share memory. False if torch launches kernels one by one."""
    lockstep: bool = False
    """True if all ranks of a pipeline run one program of a target (SPMD): they wait for each other in every tick."""

    @property
    def own(self) -> bool:
        """True if programs that planc writes run the plan, False if another framework does (`realise as FRAMEWORK`)."""
        return self.policy.name == "planc"

    @property
    def matmuls(self) -> Library:
        """The library that runs matmuls: XLA on TPUs, elsewhere the framework's."""
        return "xla" if self.xla else self.policy.matmuls

    @property
    def target(self) -> AnyTarget:
        """The target for which a plan is costed by default: that of its cluster, or "none" if another framework runs
        the plan, because targets describe programs that planc writes."""
        return NO_TARGET if not self.own else "xla" if self.xla else "cuda"


def target_of_cluster(cluster: Cluster) -> Target:
    """Return the target whose programs run on `cluster`: "xla" on TPUs, else "cuda".

    A cluster of `cpu_local` (processes of this machine) counts as "cuda": its hardware file describes torch's
    processes, one per device, connected by gloo.
    """
    return "xla" if cluster.has_tpus else "cuda"
