"""E1004: a preset without a compiled plan."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1004",
    title="a preset without a compiled plan",
    reads="preset",
    why="""`planc train` runs only what is embedded in the preset. `planc embed PLAN PRESET.toml`
writes it there.""",
    bad="",
    good="",
)
