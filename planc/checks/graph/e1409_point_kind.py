"""E1409: an unknown kind of point."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1409",
    title="an unknown kind of point",
    reads="graph",
    why="""Points are chips, switches, cards (`nic`), hosts, sockets, leaves and spines.""",
    bad="",
    good="",
)
