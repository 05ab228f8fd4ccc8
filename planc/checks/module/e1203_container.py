"""E1203: a step changes a container that outlives it."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1203",
    title="a step changes a container that outlives it",
    reads="module",
    why="""A compiled step is traced once and replayed: what Python does to a list, dict or set happens while it is
traced, and not at later steps. What was put there are tensors of a trace that is gone, or one that can never be freed.
Return such values from the step, or keep them in a buffer of fixed shape.""",
    bad="",
    good="",
)
