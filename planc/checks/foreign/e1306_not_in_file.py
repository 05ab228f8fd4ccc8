"""E1306: what the file does not hold."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1306",
    title="what the file does not hold",
    reads="foreign",
    why="""Other systems' files leave out what their launcher or their code knows: the number of devices, the machine,
the model. The option that gives it is named.""",
    bad="",
    good="",
)
