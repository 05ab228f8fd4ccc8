"""E1033: another number of devices than the plan's."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1033",
    title="another number of devices than the plan's",
    reads="preset",
    why="""The plan is for a number of devices, and the launcher has started another. With `elastic = "fsdp"` under
[checkpoint], that data-parallel axis shrinks to the devices that are there: the global batch stays, each rank takes
more microbatches, and the receipt says so. An axis under a view, or one whose new size is no whole number, cannot.""",
    bad="",
    good="",
)
