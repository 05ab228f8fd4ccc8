"""E0115: something is left to `planc search`."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E0115",
    title="left free",
    reads="text",
    why="""`?` in the place of the size of an axis of the mesh or a view, of the batch or microbatch, of a layout,
of a schedule or of what is recomputed leaves it to `planc search`, which fills in the best and
writes the plans it found. A plan with something free in it cannot be costed or lowered: nobody has said yet
what it is.""",
    bad="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   8 x h100_node
mesh      fsdp ? > tp 8
use       fsdp over fsdp
use       tp   over tp
use       sp   over tp
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
recompute blocks
""",
)
