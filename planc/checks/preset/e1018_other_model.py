"""E1018: a checkpoint of another model."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1018",
    title="a checkpoint of another model",
    reads="preset",
    why="""The checkpoint's tensors are not those of the plan's model: other names, other shapes, another vocabulary.
The layout may differ (mesh, ZeRO level, pipeline, number of devices, stack): a checkpoint holds whole,
named tensors.""",
    bad="",
    good="",
)
