"""W1310: a field that a sentence says only nearly."""

from planc.diag.registry import Rule

RULE = Rule(
    code="W1310",
    title="a field that a sentence says only nearly",
    reads="foreign",
    why="""The field's meaning has no sentence of its own; the plan has the nearest one. The message says what differs,
and in which direction memory or time are off.""",
    bad="",
    good="",
)
