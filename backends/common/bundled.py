"""Finds the model families for which a target has a module: one file per family in its folder `models`."""

from __future__ import annotations

from pathlib import Path

from planc.backends.common.refusal import refused
from planc.catalog import model_names
from planc.catalog.parts.decoders import DECODERS
from planc.diag.diagnostic import Diagnostic
from planc.ir.model import Model
from planc.ir.plan import Plan

HERE = Path(__file__).parent.parent


def not_bundled(plan: Plan, target: str) -> list[Diagnostic]:
    """Return E0901 at the model's sentence if no module of `target` (a folder below `backends`) implements the model of
    `plan`; else []."""
    why = _missing(plan.model, target)
    if not why:
        return []
    cause = plan.model.cause or plan.mesh.cause
    help = HELP.format(", ".join(_bundled(target)))
    if plan.model.family == TRACED:
        help = OWN
    elif plan.model.family in DECODERS and target == "cuda":
        help = OF_CONFIG
    return [refused(f"{target} target", cause, why, help=help)]


TRACED = "traced"
"""The family of models that were traced from code."""
HELP = "check and cost take it into account; there are modules of {}"
OF_CONFIG = "`program.parallelize(model)` divides its class; `model from transformers` is read from it, and audited"
OWN = "`planc audit --allow-code` runs the module's own code, and `program.parallelize(model)` divides it"


def _bundled(target: str) -> list[str]:
    files = {file.stem for file in (HERE / target / "models").glob("*.py")}
    return sorted(files & set(model_names().values()))


def _missing(model: Model, target: str) -> str:
    """Return what the modules of `target` lack for `model`, such as RoPE scaling; "" if they support it."""
    if not (HERE / target / "models" / f"{model.family}.py").is_file():
        return f"it has no module of the {model.family} family yet"
    if model.sizes.get("mtp_layers"):
        return f"its {model.family} module predicts no further tokens"
    if model.rope_scaling and not _scales(model):
        return f"its {model.family} module does not scale rotary positions ({model.rope_scaling['rope_type']})"
    return ""


SCALED: dict[str, frozenset[str]] = {
    "linear": frozenset({"rope_type", "factor"}),
    "llama3": frozenset(
        {"rope_type", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
    ),
}
"""RoPE scalings that the bundled modules support, with their fields."""
OWN_POSITIONS = ("deepseek",)
"""Families whose modules implement their own RoPE, without scaling."""


def _scales(model: Model) -> bool:
    """True if the module of the model's family implements the RoPE scaling that `model` has."""
    known = SCALED.get(str(model.rope_scaling["rope_type"]))
    return model.family not in OWN_POSITIONS and known == frozenset(model.rope_scaling)
