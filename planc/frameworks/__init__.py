"""The frameworks that a `realise as NAME` sentence may name: one module each, with the framework's policy.

A policy decides what a plan leaves open: the attention kernel, which transfers overlap with compute, where a recomputed
block ends, what `recompute selective` recomputes, how the vocabulary is padded, and what is in memory besides the
tensors of any correct program. planc's own programs are one of the frameworks, and the default. `planc import` writes
the sentence, `planc.calibration` describes published runs with it, and both read these policies.
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
    """Return the policy of the framework `name` (one of `NAMES`): its decisions where a plan leaves a choice."""
    assert name in NAMES
    found: Policy = importlib.import_module(f"{__name__}.{name}").POLICY
    return found


def stack_of(plan: Plan) -> Stack:
    """Return the software stack for `plan` if no target is given: its framework, on XLA if the cluster's target is
    xla."""
    return Stack(policy=policy_of(plan.framework), xla=target_of_cluster(plan.cluster) == "xla")
