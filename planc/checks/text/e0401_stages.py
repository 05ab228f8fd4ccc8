"""E0401: the stages do not hold the model's layers."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E0401",
    title="layers lost between stages",
    reads="text",
    why="""Every layer must lie in exactly one stage, and the list must have one entry for each virtual stage. Tools
that divide layers by ranks and round down have silently built models with layers missing.""",
    bad="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   1 x h100_node
mesh      pp 4 > fsdp 2
use       fsdp over fsdp
split     layers over pp as 1f1b stages [embed + 7, 2 x 8 layers, 7 + head]
compute   bf16 reduce fp32
recompute blocks
""",
    good="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   1 x h100_node
mesh      pp 4 > fsdp 2
use       fsdp over fsdp
split     layers over pp as 1f1b stages [embed + 7, 2 x 9 layers, 7 + head]
compute   bf16 reduce fp32
recompute blocks
""",
)
