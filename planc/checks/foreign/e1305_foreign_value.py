"""E1305: a field's value is not one that it takes."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1305",
    title="a field's value is not one that it takes",
    reads="foreign",
    why="""The value is of another type than the field's, out of its bounds, none of the words that the system knows,
or left to the shell: a variable that the script does not set itself is given with `--set NAME=VALUE`.""",
    bad="",
    good="",
)
