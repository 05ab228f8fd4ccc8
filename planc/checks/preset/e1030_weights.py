"""E1030: weights that cannot be read."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1030",
    title="weights that cannot be read",
    reads="preset",
    why="""`[train] weights` names a folder in Hugging Face's format: safetensors files with their index, or one file.
Pickles (`pytorch_model.bin`) are never opened, because reading one runs what it says.""",
    bad="",
    good="",
)
