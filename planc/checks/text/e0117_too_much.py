"""E0117: more text, sentences or axes than a check reads."""

from string import ascii_lowercase

from planc.diag.registry import Rule

AXES = " > ".join(f"{name} 1" for name in ascii_lowercase + "ABCDEF")

RULE = Rule(
    code="E0117",
    title="too much to check",
    reads="text",
    why="""Checks of strangers' plans run in CI and in editors, so each has an end: a plan and its imports hold at
most a megabyte and 4,000 sentences (200,000 characters in a file, comments not counted), its layouts write at most
4,000, and its mesh has at most 32 axes. A plan of that size was made by a program; let it write patterns, as
`override layers.*.attention.wq` is one, or leave out what changes nothing.""",
    bad=f"""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   1 x h100_node
mesh      fsdp 8 > {AXES}
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
