"""Emits the functions that keep state in host memory and fetch it layer by layer."""

from __future__ import annotations

from planc.backends.common.source_writer import WIDTH, beside
from planc.backends.common.specialise import specialise
from planc.backends.xla.analysis.offload import cause_of, updates_where_it_rests
from planc.backends.xla.analysis.state_dtypes import narrow_state
from planc.backends.xla.program.facts import JaxFacts
from planc.costing.step.offload import STATE
from planc.ir.plan import Plan
from planc.ir.sharding import Sharded

MEMORY = {False: "device", True: "pinned_host"}
"""JAX memory kinds: of a device, and pinned memory of its host."""


def memory_lines(plan: Plan) -> list[str]:
    """Return the lines of `PARAMS_MEMORY` and `OPTIMIZER_MEMORY`; [] if all state stays on the device."""
    if not plan.state_on_host:
        return []
    found = ((noun, MEMORY[noun in plan.offloaded], cause_of(plan, noun)) for noun in STATE)
    return [
        line
        for noun, memory, cause in found
        for line in beside(f'{noun.upper()}_MEMORY = "{memory}"', cause.comment() if cause else "")
    ]


def offload_functions(sharded: Sharded) -> list[str]:
    """Return the source of the functions that transfer state, one text each; [] if all state stays on the device."""
    plan = sharded.plan
    if not plan.state_on_host:
        return []
    facts = JaxFacts(narrow_state=narrow_state(plan), updates_where_it_rests=updates_where_it_rests(sharded))
    entries = ["_resting", "_updated", *(["_copies"] if "params" in plan.offloaded else [])]
    return specialise("planc.backends.xla.program", "offload", facts, entries, WIDTH)
