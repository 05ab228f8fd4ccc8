"""N0119: what a model's code keeps for its backward was not seen."""

from planc.diag.registry import Rule

RULE = Rule(
    code="N0119",
    title="what the code keeps was not seen",
    reads="text",
    why="""`model from transformers` and `model from code` run a module forward and backward once, on tensors without
values, and note what its own code keeps: a copy in fp32 before a norm, scores of attention that is no fused kernel, a
mask. The peak of memory of torch programs follows from that. Where the module's code cannot be run so, for every
sequence or for those beyond some length, this note says at which line and why, and the peak is predicted as if planc's
own modules ran in its place: too low where the module keeps more than these do.""",
    bad="",
    good="",
)
