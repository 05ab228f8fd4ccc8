"""The diagnostic for a sentence that a target or a runtime does not support."""

from __future__ import annotations

from planc.diag.diagnostic import Diagnostic
from planc.ir.base import Cause

STATE_DTYPES = ("fp32", "bf16")
"""Supported dtypes of state between steps, of compute and of reductions; fp16 would need loss scaling."""
Refusal = tuple[Cause | None, str, str]
"""The sentence (None: the whole plan), why it is unsupported, and what to write instead."""


def refused(who: str, cause: Cause, why: str, *, help: str = "", label: str = "") -> Diagnostic:
    """Return E0901 at the sentence of `cause`: `who` (`xla target` or `torch_xla runtime`) does not support it."""
    message = f"the {who} cannot do `{cause.via or cause.sentence}`: {why}"
    return Diagnostic("E0901", message, cause.span, label=label, help=help)
