"""N1008: a preset without its source."""

from planc.diag.registry import Rule

RULE = Rule(
    code="N1008",
    title="a preset without its source",
    reads="preset",
    why="""The plan's source is not beside the preset, so planc cannot check that the compiled plan is up to date.
The compiled plan is used as it stands, which is what presets are for.""",
    bad="",
    good="",
)
