"""W0116: an old spelling, which planc still reads."""

from planc.diag.registry import Rule

RULE = Rule(
    code="W0116",
    title="old spelling",
    reads="text",
    why="""The language has one spelling for one thing. A sentence in an earlier spelling keeps its meaning: it is
read as the new one. `planc fmt` rewrites it. `let` was `param`. `attention.core as` was `attention core as`.
`in` says where in the computation a dim is divided and `for` whose state a sentence is about; either was taken for
the other. `2 x 9 layers` was `9 x 2`: a count stands before what it counts. `ddp` was also `dp`, and `fsdp` was also
`zero3`. After `recompute` and `quantize` an op is named by its dotted name or the beginning of one (`attention.norm`,
`ffn`); earlier also by its kind, its last part or its region (`norm`, `swiglu`, `experts`).""",
    bad="""plan example
param     nodes = 1
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   nodes x h100_node
mesh      fsdp 8
use       fsdp over fsdp
compute   bf16 reduce fp32
recompute blocks
""",
    good="""plan example
let       nodes = 1
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   nodes x h100_node
mesh      fsdp 8
use       fsdp over fsdp
compute   bf16 reduce fp32
recompute blocks
""",
)
