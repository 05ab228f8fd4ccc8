"""E0105: a file that is not text."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E0105",
    title="not a text file",
    reads="text",
    why="""Plans are UTF-8 text of at most a megabyte. A checkpoint, an archive or a file in
another encoding was probably named by mistake.""",
    bad="",
    good="",
)
