"""E1403: a point that is there twice."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1403",
    title="a point that is there twice",
    reads="graph",
    why="""Each chip is one rank. A name that stands twice would count its device twice, or join what is not
joined.""",
    bad="",
    good="",
)
