"""E1009: the framework is not installed."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1009",
    title="the framework is not installed",
    reads="preset",
    why="""The target needs torch or jax: checking and lowering do not, training does. A tokenizer's file needs the
package tokenizers (`planc[data]`), and [watch] tensorboard or wandb (`planc[watch]`).""",
    bad="",
    good="",
)
