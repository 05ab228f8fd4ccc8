"""E0102: a sentence that begins well and then stops making sense."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E0102",
    title="malformed sentence",
    reads="text",
    why="""Each sentence has a fixed form (`planc explain` lists the verbs; the language reference shows them all).
The message lists what the grammar allows at the marked place.""",
    bad="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   1 x h100_node
mesh      fsdp 8
use       fsdp ovr fsdp
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
