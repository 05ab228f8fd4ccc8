"""E1017: another run is saving there."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1017",
    title="another run is saving there",
    reads="preset",
    why="""Two runs in one folder would take each other's checkpoints for their own. The lock is the kernel's: it is
free as soon as the process that holds it has ended, however it ended.""",
    bad="",
    good="",
)
