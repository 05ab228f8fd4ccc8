"""E1413: a link that the file does not declare."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1413",
    title="a link that the file does not declare",
    reads="graph",
    why="""Wires and parts name links of `link` sentences in the same file.""",
    bad="",
    good="",
)
