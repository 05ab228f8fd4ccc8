"""E1032: the data cannot be read."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1032",
    title="the data cannot be read",
    reads="preset",
    why="""The path in [data] is not there or is empty, a file is not of the format that its name says, text is not
UTF-8, or the tokenizer's file holds no tokenizer. The run has not started, and no file was changed.""",
    bad="",
    good="",
)
