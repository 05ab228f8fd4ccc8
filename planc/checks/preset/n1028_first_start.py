"""N1028: nothing to resume yet."""

from planc.diag.registry import Rule

RULE = Rule(
    code="N1028",
    title="nothing to resume yet",
    reads="preset",
    why="""`--resume` in a folder without checkpoints starts at the first step, so that a job's command is the same for
its first start and its restarts.""",
    bad="",
    good="",
)
