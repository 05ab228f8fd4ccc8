"""E1003: a wrong value in a preset."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1003",
    title="a wrong value in a preset",
    reads="preset",
    why="""The value has the wrong type or lies outside its range, such as a learning rate of 0 or
a number of steps in quotes.""",
    bad="",
    good="",
)
