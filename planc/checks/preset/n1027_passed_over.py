"""N1027: a damaged checkpoint was passed over."""

from planc.diag.registry import Rule

RULE = Rule(
    code="N1027",
    title="a damaged checkpoint was passed over",
    reads="preset",
    why="""`on_damage = "previous"`: the newest checkpoint is not whole, and the run goes on from the newest one that
is. The steps between are done again. The damaged one is put aside under another name.""",
    bad="",
    good="",
)
