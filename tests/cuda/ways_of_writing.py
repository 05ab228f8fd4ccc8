"""Decoders as people write them: parts in lists that a loop calls, norms inside halves, layers in sequence."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, DEPTH, VOCAB = 32, 4, 3, 50


class Attention(nn.Module):
    """With a norm of its own in front, or without one."""

    def __init__(self, *, normed: bool) -> None:
        super().__init__()
        self.heads = HEADS
        self.norm = nn.LayerNorm(WIDTH) if normed else nn.Identity()
        self.to_qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.to_out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Any:
        rows = self.to_qkv(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (t.reshape(*t.shape[:2], self.heads, -1).transpose(1, 2) for t in rows)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.to_out(mixed.transpose(1, 2).flatten(2))


def feed_forward(*, normed: bool) -> nn.Sequential:
    """A sequence of layers; those without a norm in front have biases."""
    first = [nn.LayerNorm(WIDTH)] if normed else []
    up, down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH, bias=not normed)
    return nn.Sequential(*first, up, nn.GELU(), down, nn.Dropout(0.0))


class Ends(nn.Module):
    """The parts that every one of them has around its blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCAB, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB)


class Pairs(Ends):
    """A list of pairs, each half with its norm inside."""

    def __init__(self) -> None:
        super().__init__()
        pairs = ([Attention(normed=True), feed_forward(normed=True)] for _ in range(DEPTH))
        self.layers = nn.ModuleList(nn.ModuleList(pair) for pair in pairs)

    def forward(self, ids: Tensor) -> Any:
        x = self.words(ids)
        pairs: Any = self.layers
        for attn, ff in pairs:
            x = attn(x) + x
            x = ff(x) + x
        return self.head(self.norm(x))


class Trunk(nn.Module):
    """The same below the module that is called, counted."""

    def __init__(self) -> None:
        super().__init__()
        pairs = ([Attention(normed=True), feed_forward(normed=True)] for _ in range(DEPTH))
        self.layers = nn.ModuleList(nn.ModuleDict({"a": a, "f": f}) for a, f in pairs)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        for number, layer in enumerate(self.layers):
            half = layer["a"](x) * scale  # type: ignore[index]
            x = x + half if number >= 0 else x
            x = x + layer["f"](x)  # type: ignore[index]
        return x


class Nested(Ends):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = Trunk()

    def forward(self, ids: Tensor) -> Any:
        return self.head(self.norm(self.trunk(self.words(ids))))


class Lists(Ends):
    """A list for each part, and layers that are parts themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = DEPTH
        self.firsts, self.seconds = (nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(DEPTH)) for _ in range(2))
        self.attentions = nn.ModuleList(Attention(normed=False) for _ in range(DEPTH))
        self.ups = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(DEPTH))
        self.downs = nn.ModuleList(nn.Linear(3 * WIDTH, WIDTH, bias=False) for _ in range(DEPTH))

    def forward(self, ids: Tensor) -> Any:
        x, seen = self.words(ids), []
        for i in range(self.depth):
            x = x + self.attentions[i](self.firsts[i](x))
            x = x + self.downs[i](F.silu(self.ups[i](self.seconds[i](x))))
            seen.append(x)
        return self.head(self.norm(seen[-1]))


class Block(nn.Module):
    """A block whose layers up and down are a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn, self.mlp = Attention(normed=False), feed_forward(normed=False)

    def forward(self, x: Tensor) -> Any:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Sequence(Ends):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))

    def forward(self, ids: Tensor) -> Any:
        return self.head(self.norm(self.blocks(self.words(ids))))


class Inline(nn.Module):
    """A block with all of its layers in itself."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = HEADS
        self.first, self.second = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, 72, bias=False) for _ in range(2))
        self.down = nn.Linear(72, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Any:
        y = self.first(x)
        batch, tokens, _ = y.shape
        q, k, v = (f(y).view(batch, tokens, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = x + self.o(mixed.reshape(batch, tokens, -1))
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class InBlocks(Ends):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Inline() for _ in range(DEPTH))

    def forward(self, ids: Tensor) -> Any:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Mixed(nn.Module):
    """Attention whose layers have the names of an op graph's, each another's."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = HEADS
        self.wk, self.wo, self.wq, self.core = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Any:
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.wk, self.wo, self.wq))
        return self.core(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Gated(nn.Module):
    """A gated layer whose gate is `w3`, and the layer down `w1`."""

    def __init__(self) -> None:
        super().__init__()
        self.w2, self.w3 = (nn.Linear(WIDTH, 72, bias=False) for _ in range(2))
        self.w1 = nn.Linear(72, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Any:
        return self.w1(F.silu(self.w3(x)) * self.w2(x))


class Swapped(nn.Module):
    """A block whose parts have the names of an op graph's, each another's."""

    def __init__(self) -> None:
        super().__init__()
        self.ffn_norm, self.attention_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.feed_forward, self.attention = Mixed(), Gated()

    def forward(self, x: Tensor) -> Any:
        x = x + self.feed_forward(self.ffn_norm(x))
        return x + self.attention(self.attention_norm(x))


class OurNames(Ends):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Swapped() for _ in range(DEPTH))

    def forward(self, ids: Tensor) -> Any:
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


WAYS: dict[str, type[nn.Module]] = {
    "pairs": Pairs,
    "nested": Nested,
    "lists": Lists,
    "sequence": Sequence,
    "in_blocks": InBlocks,
    "our_names": OurNames,
}
