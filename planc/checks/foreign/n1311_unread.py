"""N1311: words that the plan is not read from."""

from planc.diag.registry import Rule

RULE = Rule(
    code="N1311",
    title="words that the plan is not read from",
    reads="foreign",
    why="""A script makes folders, loads modules and sets variables that its training command never uses; a field may be
there for a part of the system that the configuration does not turn on. The plan says nothing of them. They are
named with their lines, so that a setting which ended up there by mistake is seen.""",
    bad="",
    good="",
)
