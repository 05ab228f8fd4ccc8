"""E0107: a sentence that must stand exactly once is missing, or stands twice."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E0107",
    title="a sentence is missing or given twice",
    reads="text",
    why="""A plan names one model, one batch, one cluster, one mesh and the dtype that it computes in. planc cannot know
which of two such sentences was meant, and cannot cost a plan without one of them: what takes 13 s in bf16 takes 118 s
in fp32 on the same GPUs, so neither goes without saying.""",
    bad="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   1 x h100_node
cluster   2 x h100_node
mesh      fsdp 8
use       fsdp over fsdp
compute   bf16 reduce fp32
recompute blocks
""",
    good="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   1 x h100_node
mesh      fsdp 8
use       fsdp over fsdp
compute   bf16 reduce fp32
recompute blocks
""",
)
