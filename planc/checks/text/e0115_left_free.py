"""E0115: something is left to `planc search`."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E0115",
    title="a value left open",
    reads="text",
    why="""A `?` leaves a choice to `planc search`: the size of an axis of the mesh or a view, the batch or
microbatch, a layout, a schedule, or the recomputed ops. A comma between axes (`fsdp 8, tp 8`) leaves
their order to it. The search finds the best values and writes the plans with them. A plan that still
leaves something open cannot be costed or lowered, because it does not describe one layout yet.""",
    bad="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   8 x h100_node
mesh      fsdp ? > tp 8
use       fsdp over fsdp
use       tp   over tp
use       sp   over tp
compute   fp32
recompute blocks
""",
    good="""plan example
model     llama3_8b
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
