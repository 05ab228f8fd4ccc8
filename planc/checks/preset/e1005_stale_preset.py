"""E1005: a stale preset."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1005",
    title="a stale preset",
    reads="preset",
    why="""The plan's source, or a file it imports, has changed since it was embedded: the preset
would train something else than the source says. Embed it again, or restore the source.""",
    bad="",
    good="",
)
