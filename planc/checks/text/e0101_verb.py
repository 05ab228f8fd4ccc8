"""E0101: the first word of a sentence is no verb of the language."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E0101",
    title="unknown verb",
    reads="text",
    why="""A plan is one sentence a line and every sentence begins with a verb. planc refuses a verb that it does
not know: skipping the line would leave out a part of the layout.""",
    bad="""plan example
modle     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   1 x h100_node
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
