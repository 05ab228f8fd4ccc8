"""E1022: a checkpoint of a later version."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1022",
    title="a checkpoint of a later version",
    reads="preset",
    why="""The manifest's format is one that this version of planc does not know. planc does not guess what it
holds.""",
    bad="",
    good="",
)
