"""E1425: a topology in which something is there twice."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1425",
    title="a topology in which something is there twice",
    reads="graph",
    why="""A node below two switches, two rows of one GPU, two devices at the same coordinates: the machine would have
more devices than there are.""",
    bad="",
    good="",
)
