"""E0701: an override that matches no parameter."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E0701",
    title="an override matches nothing",
    reads="text",
    why="""A glob that matches no parameter changes nothing, and the plan would run as if it were
not there. torch only warns about such a key. `*` stands for any characters; layers are written
`layers.*`.""",
    bad="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   1 x h100_node
mesh      fsdp 2 > tp 4
use       fsdp over fsdp
use       tp   over tp
compute   bf16 reduce fp32
override  layers.*.mlp.w2 = replicated
recompute blocks
""",
    good="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   1 x h100_node
mesh      fsdp 2 > tp 4
use       fsdp over fsdp
use       tp   over tp
compute   bf16 reduce fp32
override  output = replicated
recompute blocks
""",
)
