"""E1026: the ranks make no progress."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1026",
    title="the ranks make no progress",
    reads="preset",
    why="""No rank began anything new for `[train] hang_s` seconds: most often all wait in a collective for one
that is stopped, stuck or slow. The message names that rank and what it was doing. All ranks are ended; the
last checkpoint stands, and `--resume` goes on from it.""",
    bad="",
    good="",
)
