"""E1010: too many ranks for one machine."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1010",
    title="too many ranks for one machine",
    reads="preset",
    why="""`planc train` starts every rank on this machine. A plan for a cluster is started there,
from its emitted program.""",
    bad="",
    good="",
)
