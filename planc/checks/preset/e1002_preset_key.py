"""E1002: an unknown key in a preset."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1002",
    title="an unknown key in a preset",
    reads="preset",
    why="""Every key of a preset means something; one that planc does not know would be dropped
without a word, and the run would not be the one that is written. The nearest legal key is offered.""",
    bad="",
    good="",
)
