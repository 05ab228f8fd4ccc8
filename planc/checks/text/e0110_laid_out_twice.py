"""E0110: two sentences give one dim two layouts."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E0110",
    title="two layouts for one dim or noun",
    reads="text",
    why="""A dim has one layout in a region, and params, grads and optimizer are each stored in one layout. To
divide a dim over two axes, name both in one sentence; `use hsdp over replica, fsdp` does so for the
batch.""",
    bad="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   2 x h100_node
mesh      replica 2 > fsdp 8
shard     batch over replica, fsdp
shard     batch over fsdp
store     params, grads, optimizer over fsdp
compute   bf16 reduce fp32
recompute blocks
""",
    good="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   2 x h100_node
mesh      replica 2 > fsdp 8
shard     batch over replica, fsdp
store     params, grads, optimizer over fsdp
compute   bf16 reduce fp32
recompute blocks
""",
)
