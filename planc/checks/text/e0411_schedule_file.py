"""E0411: the file of a pipeline schedule is not one."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E0411",
    title="mistakes in a schedule file",
    reads="text",
    why="""`split layers over AXIS as csv("schedule.csv")` reads torch's layout: a row a rank, a cell
an action, such as 0F3 for the forward of microbatch 3 on stage 0. Every stage lies on one rank and runs
every microbatch once, forward (F) and backward, whole (B) or in its two parts (I and W).""",
    bad="",
    good="",
)
