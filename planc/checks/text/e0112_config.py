"""E0112: a Hugging Face config that planc does not compile."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E0112",
    title="a config that is not compiled",
    reads="text",
    why="""`model from "config.json"` reads the configs of the families in the catalog. A config of another
             model type, or with a field that makes it another model (biases, tied embeddings, a sliding
             window), is refused: costing it as a plain Llama would be wrong without a word.""",
    bad="",
    good="",
)
