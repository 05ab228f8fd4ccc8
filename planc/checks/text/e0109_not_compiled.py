"""E0109: a sentence of the language that planc does not compile yet."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E0109",
    title="not compiled yet",
    reads="text",
    why="""The language is larger than what this version compiles. A sentence is refused rather
than dropped: a plan whose quantization or offload is ignored would be costed and run as another
plan.""",
    bad="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   1 x h100_node
mesh      fsdp 8
use       fsdp over fsdp
compute   bf16 reduce fp32
recompute blocks except layers 0, 31
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
