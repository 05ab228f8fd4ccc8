"""E0106: an empty file, or one that does not begin with a header."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E0106",
    title="no header",
    reads="text",
    why="""The first sentence says what a file is: `plan NAME`, `layout NAME over AXES` or
`hardware NAME`. `planc check` wants a plan; layouts and hardware are used from one.""",
    bad="""model     llama3_8b
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
