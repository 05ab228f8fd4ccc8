"""E0103: a number or unit that does not fit its place."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E0103",
    title="wrong number or unit",
    reads="text",
    why="""A quantity is written with its unit, and each position takes one kind of unit: memory in GiB, bandwidth
in GB/s, a share in %. Sizes are whole numbers of at least 1, and a division must leave no remainder.""",
    bad="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   1 x h100_node
mesh      fsdp 8
use       fsdp over fsdp
compute   bf16 reduce fp32
recompute blocks
expect    memory <= 72 GB/s
""",
    good="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   1 x h100_node
mesh      fsdp 8
use       fsdp over fsdp
compute   bf16 reduce fp32
recompute blocks
expect    memory <= 72 GiB
""",
)
