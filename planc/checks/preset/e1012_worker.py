"""E1012: a worker failed."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1012",
    title="a worker failed",
    reads="preset",
    why="""A rank ended with an error or the run took longer than allowed. All ranks are stopped;
the failing rank's output is shown above.""",
    bad="",
    good="",
)
