"""E1019: a checkpoint that is not whole."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1019",
    title="a checkpoint that is not whole",
    reads="preset",
    why="""Files that the manifest names are not there, or the boxes that are there do not make up the whole tensors;
or there is no checkpoint of the step that was asked for. A checkpoint gets its name only when all of it is
on the disk, so something was removed later.""",
    bad="",
    good="",
)
