"""E1015: checkpoints without a folder."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1015",
    title="checkpoints without a folder",
    reads="preset",
    why="""The preset asks for checkpoints, or the command line for a run to go on, and no folder is named.
`[checkpoint] folder` is the place of one run's checkpoints, relative to the preset; `--checkpoint DIR`
takes precedence over it.""",
    bad="",
    good="",
)
