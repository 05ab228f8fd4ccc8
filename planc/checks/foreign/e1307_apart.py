"""E1307: fields that contradict each other."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1307",
    title="fields that contradict each other",
    reads="foreign",
    why="""The numbers of the file cannot all hold: the degrees of parallelism do not divide the devices, or the batch
is no multiple of the ranks that share it. The message shows the arithmetic.""",
    bad="",
    good="",
)
