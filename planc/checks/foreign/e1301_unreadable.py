"""E1301: another system's file cannot be read."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1301",
    title="another system's file cannot be read",
    reads="foreign",
    why="""The file is no text of its format (shell flags, YAML, JSON, TOML), is too large, or is nested or repeated
beyond reason; or it is a link, a device or a folder. The message names the place where it stops being
readable. Nothing of it was executed.""",
    bad="",
    good="",
)
