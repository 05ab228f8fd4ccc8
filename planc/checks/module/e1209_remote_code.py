"""E1209: a model that transformers has not."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1209",
    title="a model that transformers has not",
    reads="module",
    why="""The class of a config's `model_type` is that of the installed transformers package. Code that a config brings
along (`auto_map`) is never run: build the module yourself and call `planc.model_of(module)`.""",
    bad="",
    good="",
)
