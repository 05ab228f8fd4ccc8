"""E1421: a what-if that cannot be read."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1421",
    title="a what-if that cannot be read",
    reads="graph",
    why="""`--with` takes one change of the machine: a link at a share of its bandwidth or gone, all links of a name,
a host, a switch, a card or a rail gone, more oversubscription, nodes dealt over leaves. The place is in the option's
text.""",
    bad="",
    good="",
)
