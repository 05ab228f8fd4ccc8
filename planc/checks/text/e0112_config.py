"""E0112: a Hugging Face config that planc does not compile."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E0112",
    title="a config that is not compiled",
    reads="text",
    why="""`model from "config.json"` reads the configs of the families in the catalog (docs/reference/models.md lists
them). A config of another model type, or with a field that makes it another model (an activation, a
bias, a kind of attention that the family does not have), is refused: costing it as the plain family
would be wrong without a word. So is one field given twice under two names with two values, and a size
that is not there.""",
    bad="",
    good="",
)
