"""N1308: fields that change neither layout, memory nor time."""

from planc.diag.registry import Rule

RULE = Rule(
    code="N1308",
    title="fields that change neither layout, memory nor time",
    reads="foreign",
    why="""Where a system logs, what it calls a run, how often it saves: a plan has no sentence for these, and needs
none. They are listed, so that nothing is dropped in silence.""",
    bad="",
    good="",
)
