"""N0110: a sentence that is written out beats the same dim of a layout."""

from planc.diag.registry import Rule

RULE = Rule(
    code="N0110",
    title="a sentence beats a layout",
    reads="text",
    why="""`use` is a shorthand for sentences. Where a plan also writes such a sentence out, the
written one counts; the note says which was beaten, so that nobody looks for it in vain.""",
    bad="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   1 x h100_node
mesh      fsdp 8
use       fsdp over fsdp
store     params as bf16 over fsdp
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
recompute blocks
""",
)
