"""E0120: a matrix that takes no low-rank update."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E0120",
    title="a matrix that takes no low-rank update",
    reads="text",
    why="""`lora` adds B A to a weight [out, in], with A [rank, in] and B [out, rank]. A rank that is no less than the
weight's own smaller side says nothing that training the weight itself would not, and needs more memory. The weights of
experts are a matrix for each expert, and a head tied to the embedding has no weight of its own: planc writes no updates
for these.""",
    bad="""plan example
model     llama3_8b
lora      rank 1024 on attention.k, attention.v
batch     64 x 8192 tokens microbatch 1
cluster   8 x h100_node
mesh      fsdp 8 > tp 8
use       fsdp over fsdp
use       tp   over tp
use       sp   over tp
compute   fp32
recompute blocks
""",
    good="""plan example
model     llama3_8b
lora      rank 16 on attention.k, attention.v
batch     64 x 8192 tokens microbatch 1
cluster   8 x h100_node
mesh      fsdp 8 > tp 8
use       fsdp over fsdp
use       tp   over tp
use       sp   over tp
compute   fp32
recompute blocks
""",
)
