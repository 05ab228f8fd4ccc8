"""E0802: a diagnostic is there that the plan expects to be absent."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E0802",
    title="a diagnostic that the plan excludes",
    reads="cost",
    why="""`expect no CODE` makes the check fail when a finding of that code appears.""",
    bad="",
    good="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   2 x h100_node
mesh      fsdp 2 > tp 8
use       fsdp over fsdp
use       tp   over tp
use       sp   over tp
compute   bf16 reduce fp32
recompute blocks
expect    no W0601
""",
)
