"""Lowers the first step of a run for abstract devices, for `planc train --dry-run`."""

from __future__ import annotations

import re
from math import prod
from typing import Any

from planc.ir.program_text import ProgramText


def dry_run(program: ProgramText) -> dict[str, Any]:
    """Return facts about the step of `program` as StableHLO: counts of operations and shardings, and bytes of state on
    one device. Imports jax."""
    plan = program.plan
    from planc.backends.xla.runtime.start_up import prepare_environment

    prepare_environment(plan.mesh.devices)
    import jax

    from planc.backends.xla.audit.worker import step_of

    mesh, step, arguments = step_of(program, jax.devices()[: plan.mesh.devices])
    lowered = step.lower(*arguments)
    text = lowered.as_text()
    emitted, state = program.load(), arguments[0]
    where = emitted.state_shardings(mesh, state["params"], emitted.adamw())
    leaves = zip(jax.tree.leaves(state), jax.tree.leaves(where), strict=True)
    return {
        "operations": len(re.findall(r"\bstablehlo\.", text)),
        "constraints": text.count("sharding_constraint"),
        "state_bytes": sum(prod(rest.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf, rest in leaves),
    }
