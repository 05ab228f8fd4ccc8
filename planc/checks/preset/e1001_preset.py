"""E1001: an unreadable preset."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1001",
    title="an unreadable preset",
    reads="preset",
    why="""A preset is a TOML file. The message names the place where it stops being one, or why
it cannot be read.""",
    bad="",
    good="",
)
