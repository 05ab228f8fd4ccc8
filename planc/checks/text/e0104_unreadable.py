"""E0104: a file that cannot be read."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E0104",
    title="unreadable file",
    reads="text",
    why="""The file does not exist, is a folder, or may not be read. planc can report nothing else about it.""",
    bad="",
    good="",
)
