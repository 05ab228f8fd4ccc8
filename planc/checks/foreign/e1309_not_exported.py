"""E1309: a sentence that another system cannot say."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1309",
    title="a sentence that another system cannot say",
    reads="foreign",
    why="""`planc export` reads what it has written again. A sentence that the other system has no field for, or whose
field means something else there, is refused rather than written as something near.""",
    bad="",
    good="",
)
