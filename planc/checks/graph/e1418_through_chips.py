"""E1418: a way that leads through a chip."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1418",
    title="a way that leads through a chip",
    reads="graph",
    why="""GPUs pass no messages on but for peers in their own node: traffic goes over switches, cards and hosts.""",
    bad="",
    good="",
)
