"""E1423: a what-if after which the plan cannot run."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1423",
    title="a what-if after which the plan cannot run",
    reads="graph",
    why="""Fewer devices need a shorter mesh: an axis that divides the batch is made shorter, and the batch smaller
in step, where both stay whole. Or some ranks no longer reach each other over the links that are left.""",
    bad="",
    good="",
)
