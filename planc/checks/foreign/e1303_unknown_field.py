"""E1303: a field that planc does not know."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1303",
    title="a field that planc does not know",
    reads="foreign",
    why="""A field that planc does not know might change the layout, the memory or the time of a step, so it is not
dropped in silence. If it changes none of them, `--ignore NAME` leaves it out; a misspelt one is shown with
the nearest name.""",
    bad="",
    good="",
)
