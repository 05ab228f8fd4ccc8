"""E1025: a checkpoint could not be written."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1025",
    title="a checkpoint could not be written",
    reads="preset",
    why="""The last save of the run failed, such as on a full disk. Checkpoints before it are untouched. A save that
fails earlier in the run is reported, and the next one is tried as usual.""",
    bad="",
    good="",
)
