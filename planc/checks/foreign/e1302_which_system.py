"""E1302: no system is known whose file looks so."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1302",
    title="no system is known whose file looks so",
    reads="foreign",
    why="""The look of a file tells which system it is for: names that only one system has, or the program that a
script starts. A file without any is read once its system is said with `--from`.""",
    bad="",
    good="",
)
