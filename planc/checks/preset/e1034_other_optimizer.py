"""E1034: another optimizer than the plan's."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1034",
    title="another optimizer than the plan's",
    reads="preset",
    why="""Optimizers differ in what they keep: AdamW has two moments of each parameter, Muon one of each matrix of the
blocks. A plan that names one has its memory and step time predicted for it, so the preset trains with that one. A plan
that names none leaves the choice to the preset and is predicted for AdamW.""",
    bad="",
    good="",
)
