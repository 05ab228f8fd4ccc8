"""The Mistral family: Llama whose attention sees a window of tokens, as its op graph says."""

from __future__ import annotations

from planc.backends.cuda.models.llama import build

__all__ = ["build"]
