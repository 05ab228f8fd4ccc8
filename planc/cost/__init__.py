"""Memory, compute, collectives on a topology, schedules, the step. Pure functions: bytes and seconds."""

from planc.cost.costed import Costed, cost_plan

__all__ = ["Costed", "cost_plan"]
