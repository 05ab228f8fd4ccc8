"""E0904: a compiled program that the audit cannot read."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E0904",
    title="a compiled program that is not understood",
    reads="target",
    why="""The audit counts every collective of the compiled program, as often as its loops say. An operation,
a form of groups or a loop that it does not know could hide some, so it stops: it never counts
what it can read and leaves the rest out. Other versions of jax than the pinned one may write other forms.""",
    bad="",
    good="",
)
