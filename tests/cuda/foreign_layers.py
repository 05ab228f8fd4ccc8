"""The third module of `tests/cuda/foreign` with a layer's four parts in a module of their own, as a block must be."""

from __future__ import annotations

from typing import Any

from torch import nn

from tests.cuda.foreign import c


class Layer(nn.Module):
    """One layer, [B, S, D] to the same."""

    def __init__(self, parts: Any) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, h: Any, cos: Any, sin: Any) -> Any:
        h = h + self.parts["attn"](self.parts["pre_attn"](h), cos, sin)
        return h + self.parts["ffn"](self.parts["pre_ffn"](h))


class WithLayers(c.RawLM):
    """Weights that are bare parameters, [in, out], and an embedding that is one too."""

    def __init__(self) -> None:
        super().__init__()
        self.floors = nn.ModuleList(Layer(parts) for parts in self.stack.values())
        del self.stack

    def forward(self, tokens: Any) -> Any:
        own: Any = self
        h = own.table[tokens]
        cos, sin = own.angles(tokens.shape[1], c.WIDTH // c.Q_HEADS, tokens.device)
        for layer in self.floors:
            h = layer(h, cos, sin)
        return c.CAP * (own.unembed(own.out_norm(h)) / c.CAP).tanh()


def build() -> nn.Module:
    """The module."""
    return WithLayers()
