"""The frameworks that `realise as NAME` may name, one file each: what each of them does with a plan's sentences.

A framework decides what a plan leaves open: the kernel of attention, which transfers it hides, where a block that runs
again ends, what `recompute selective` runs again, how the vocabulary is padded, and what it keeps in memory beside
the tensors of any correct program. planc's own programs are one of them, and the one that counts unless a plan says
another. `planc import` writes the sentence, `planc.calibration` spells published runs with it, and both read these
tables.
"""

from __future__ import annotations

import importlib
from functools import cache

from planc.ir.plan import Plan
from planc.ir.policy import Policy
from planc.ir.stack import Stack, target_of_cluster

OWN = "planc"
NAMES = (
    *(OWN, "megatron", "bridge", "nemo", "torchtitan", "automodel", "torch", "accelerate", "deepspeed", "maxtext"),
    *("fms", "llm_foundry"),
)


@cache
def policy_of(name: str) -> Policy:
    """Return the policy of the framework `name` (what it decides where a plan leaves a choice). `name` is one of
    `NAMES`."""
    assert name in NAMES
    found: Policy = importlib.import_module(f"{__name__}.{name}").POLICY
    return found


def stack_of(plan: Plan) -> Stack:
    """Return the software stack that runs `plan` if no target is given: the plan's framework, on XLA if the cluster's
    target is xla."""
    return Stack(policy=policy_of(plan.framework), xla=target_of_cluster(plan.cluster) == "xla")
