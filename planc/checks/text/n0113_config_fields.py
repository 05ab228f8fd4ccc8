"""N0113: fields of a config that change nothing."""

from planc.diag.registry import Rule

RULE = Rule(
    code="N0113",
    title="unused fields of a config",
    reads="text",
    why="""Every field of a config is used or named: those in the note do not change what planc derives
(token ids, dropout, the dtype that weights were saved in, how a router weighs its picks).""",
    bad="",
    good="",
)
