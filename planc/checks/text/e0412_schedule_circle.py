"""E0412: the ranks of a pipeline schedule wait for each other in a cycle."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E0412",
    title="a schedule that deadlocks",
    reads="text",
    why="""A forward waits for the stage before, a backward for the stage after, and every action for the one before
it on its rank. A schedule whose waits form a cycle hangs in its first step; planc executes the action
lists and names the ranks and actions of the cycle.""",
    bad="",
    good="",
)
