"""N0110: a sentence that is written out overrides the same dim of a layout."""

from planc.diag.registry import Rule

RULE = Rule(
    code="N0110",
    title="a sentence overrides a layout",
    reads="text",
    why="""`use` is a shorthand for sentences. Where a plan also writes such a sentence out, the written one takes
precedence. The note names the sentence of the layout that it overrides.""",
    bad="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   1 x h100_node
mesh      fsdp 8
use       fsdp over fsdp
store     params as bf16 over fsdp
compute   bf16 reduce fp32
recompute blocks
""",
    good="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   1 x h100_node
mesh      fsdp 8
shard     batch over fsdp
store     params as bf16 over fsdp
store     grads, optimizer over fsdp
compute   bf16 reduce fp32
recompute blocks
""",
)
