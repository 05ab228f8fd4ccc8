"""N0114: more findings of one code than are shown."""

from planc.diag.registry import Rule

RULE = Rule(
    code="N0114",
    title="more findings of one code",
    reads="text",
    why="""A file can hold thousands of mistakes of one kind: another language, a binary that looks like
text, one wrong name in a generated plan. The first hundred of each code are shown, and this note says how
many more there are and where the last one is.""",
    bad="",
    good="",
)
