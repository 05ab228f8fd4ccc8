"""E0108: a name that nothing has."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E0108",
    title="unknown name",
    reads="text",
    why="""Models, machines, layouts, axes, dims, regions, ops, schedules and dtypes are closed
lists. The message shows the legal ones and the nearest.""",
    bad="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   1 x h100_nod
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
