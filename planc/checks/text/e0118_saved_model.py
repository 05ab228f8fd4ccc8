"""E0118: a model whose code was not read yet."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E0118",
    title="a model whose code was not read yet",
    reads="text",
    why="""`model from transformers "config.json"` and `model from code "package.module:build"` name a module by its
code, and reading a plan runs no code: its op graph is kept in a file beside the plan (`config.model.json`), which
`planc check --allow-code` writes once, and `planc.model_of(module)` in Python. Without that file, with one that is
of another config, or with one that was changed by hand there is no model to check.""",
    bad="",
    good="",
)
