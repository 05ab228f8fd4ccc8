"""E0903: a compiler gave no answer in time."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E0903",
    title="the compiler ran out of time",
    reads="target",
    why="""A compile may take minutes, and a program that does not fit may keep the compiler searching. It runs in a
process of its own that is ended when its time is up. The audit then has no result; a longer time
(`--timeout-s`) or a smaller cluster may bring an answer.""",
    bad="",
    good="",
)
