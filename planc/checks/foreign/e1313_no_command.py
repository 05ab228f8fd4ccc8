"""E1313: flags that no command takes."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1313",
    title="flags that no command takes",
    reads="foreign",
    why="""A backslash with a blank behind it, or a comment inside a command, ends the command for the shell: the lines
that follow are commands of their own, and begin with a flag. What they say would be lost.""",
    bad="",
    good="",
)
