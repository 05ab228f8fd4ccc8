"""E0112: a Hugging Face config that planc does not compile."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E0112",
    title="an unsupported model config",
    reads="text",
    why="""`model from "config.json"` reads the configs of the families in the catalog (docs/reference/models.md
lists them). A config of another model type, or with a field that makes it another model (an activation,
a bias, a kind of attention that the family does not have), is refused: costing it as the plain family
would silently be wrong. A config is also refused when it gives one field under two names with two
values, or when a size is missing.""",
    bad="",
    good="",
)
