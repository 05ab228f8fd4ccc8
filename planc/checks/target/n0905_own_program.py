"""N0905: the program is planc's own, not the framework's that the plan names."""

from __future__ import annotations

from planc.diag.registry import Rule

RULE = Rule(
    code="N0905",
    title="planc's own program",
    reads="target",
    why="""`realise as FRAMEWORK` says whose kernels, overlaps and buffers a plan is costed with. A target's program is
emitted by planc and runs on planc's modules: it has every layout, collective and dtype that the sentences say, and none
of the framework's habits. Where a target is asked for, the report is therefore that of planc's program. Without one
(`--target none`, the default of such a plan) it is that of the framework.""",
    bad="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   1 x h100_node
mesh      fsdp 8
use       fsdp over fsdp
compute   bf16 reduce fp32
recompute blocks
target    cuda
realise   as torchtitan
""",
    good="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   1 x h100_node
mesh      fsdp 8
use       fsdp over fsdp
compute   bf16 reduce fp32
recompute blocks
realise   as torchtitan
""",
)
