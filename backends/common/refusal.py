"""The diagnostic of every refusal: a sentence that a target or a runtime cannot do."""

from __future__ import annotations

from planc.diag.diagnostic import Diagnostic
from planc.ir.base import Cause

STATE_DTYPES = ("fp32", "bf16")
"""Dtypes of state that programs keep between steps; one in fp16 would need a scaled loss."""
Refusal = tuple[Cause | None, str, str]
"""The sentence (None: the plan as a whole), what cannot be done with it, and what can."""


def refused(who: str, cause: Cause, why: str, *, help: str = "", label: str = "") -> Diagnostic:
    """E0901 at a sentence. `who` is `xla target` or `torch_xla runtime`; `label` stands under the sentence."""
    message = f"the {who} cannot do `{cause.via or cause.sentence}`: {why}"
    return Diagnostic("E0901", message, cause.span, label=label, help=help)
