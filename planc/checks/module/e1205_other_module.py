"""E1205: a module that is not the plan's model."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1205",
    title="a module that is not the plan's model",
    reads="module",
    why="""`program.parallelize(model)` divides a module as the plan says, and every number of the plan's report is
of the model that the plan names. Before a process group is made, the module's parameters are compared with that
model: their names, their shapes and the number of layers; of a class of transformers also the heads, the experts
and whether the head is tied. A module that differs would be trained with a layout, and be reported with bytes and
seconds, of another one.""",
    bad="",
    good="",
)
