"""E1422: a what-if about something that the machine does not have."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1422",
    title="a what-if about something that the machine does not have",
    reads="graph",
    why="""Points and links are those that `planc graph FILE -o machine.json` lists: of a bundled machine
`node3.chip0` or `leaf1`, of an own graph the names of its file. A link is named by its two ends.""",
    bad="",
    good="",
)
