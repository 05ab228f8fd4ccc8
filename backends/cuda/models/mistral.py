"""The Mistral family: Llama with sliding-window attention, as its op graph says."""

from __future__ import annotations

from planc.backends.cuda.models.llama import build

__all__ = ["build"]
