"""E1016: the folder holds another run's checkpoints."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1016",
    title="the folder holds another run's checkpoints",
    reads="preset",
    why="""A run from the beginning would mix its checkpoints with those that are there, and remove old ones to keep
the newest few. `--resume` goes on from them; another folder begins anew. Nothing is changed.""",
    bad="",
    good="",
)
