"""W1312: a setting that the plan is not read from."""

from planc.diag.registry import Rule

RULE = Rule(
    code="W1312",
    title="a setting that the plan is not read from",
    reads="foreign",
    why="""The plan is read from the one command of a script that has the most settings, and from the last of the values
that a setting is given. Another command with settings of the same system, or an earlier value, may be what was
meant.""",
    bad="",
    good="",
)
