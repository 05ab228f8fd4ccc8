"""N0906: the target compiles the whole step, whatever regions are named."""

from __future__ import annotations

from planc.diag.registry import Rule

RULE = Rule(
    code="N0906",
    title="compiled as a whole",
    reads="target",
    why="""`compile blocks` and `compile loss` name regions that torch hands to its compiler, one at a time; the rest of
its step runs op by op. XLA is given the whole training step as one program, with these regions in it and all that is
around them, so that the sentence is true there without doing anything.""",
    bad="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   tpu_v5p(4x4x4)
mesh      fsdp 64
use       fsdp over fsdp
compute   bf16 reduce fp32
recompute blocks
compile   blocks
""",
    good="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   tpu_v5p(4x4x4)
mesh      fsdp 64
use       fsdp over fsdp
compute   bf16 reduce fp32
recompute blocks
""",
)
