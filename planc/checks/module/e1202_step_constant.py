"""E1202: a constant that changes with the step."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1202",
    title="a constant that changes with the step",
    reads="module",
    why="""A Python number in an operation is a constant of XLA's program. One that differs from step to step makes
another program each time, and each is compiled: seconds to minutes a step. So does a choice made in Python. Keep
the number in a 0-D tensor on the device and change that tensor in place.""",
    bad="",
    good="",
)
