"""E0111: an import or a layout that leads nowhere good."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E0111",
    title="import refused",
    reads="text",
    why="""A plan is untrusted text: it may read hardware and layout files in its own folder and
below, each once, and nothing else. Layouts may use layouts, to a depth of eight.""",
    bad="""plan example
import    "../secrets.plan"
model     llama3_8b
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
