"""E0412: the ranks of a pipeline schedule wait for each other in a circle."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E0412",
    title="a schedule that waits for itself",
    reads="text",
    why="""A forward waits for the stage before, a backward for the stage after, and every action for
the one before it on its rank. A schedule where these run in a circle hangs in its first step; planc runs
the lists and names the ranks and actions of the circle.""",
    bad="",
    good="",
)
