"""E0903: a compiler gave no answer in time."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E0903",
    title="no answer from the compiler in time",
    reads="target",
    why="""A compile may take minutes, and a program that does not fit may keep the compiler searching. It runs
in a process of its own that is ended when its time is up. Nothing is said about the plan then; a
longer time (`--timeout-s`) or a smaller cluster may bring an answer.""",
    bad="",
    good="",
)
