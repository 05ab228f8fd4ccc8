"""The torch module of `own_family`. It imports torch alone, and knows no mesh."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Loom(nn.Module):
    """Tokens [B, S] to logits [B, S, V]. `fixed` is the number of heads a rank views: -1 for what it has.

    A pipeline stage is without some of the children.
    """

    def __init__(self, sizes: dict[str, int], fixed: int = -1) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(sizes["vocab"], sizes["embed"])
        self.layers = nn.ModuleDict({str(i): Block(sizes, fixed) for i in range(sizes["layers"])})
        self.norm = nn.RMSNorm(sizes["embed"], eps=1e-5)
        self.output = nn.Linear(sizes["embed"], sizes["vocab"], bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = tokens if self.tok_embeddings is None else self.tok_embeddings(tokens)
        for block in self.layers.values():
            x = block(x)
        return x if self.output is None else self.output(self.norm(x))


class Block(nn.Module):
    def __init__(self, sizes: dict[str, int], fixed: int) -> None:
        super().__init__()
        embed = sizes["embed"]
        self.attention_norm, self.ffn_norm = (nn.RMSNorm(embed, eps=1e-5) for _ in range(2))
        self.attention = Attention(embed, sizes["heads"], sizes["head_dim"], fixed)
        self.feed_forward = FeedForward(embed, sizes["expert_ffn"])

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Attention(nn.Module):
    """Four projections; the last one gates what attention mixed."""

    def __init__(self, embed: int, heads: int, head_dim: int, fixed: int) -> None:
        super().__init__()
        self.shape = (fixed, head_dim) if fixed < 0 else (fixed, -1)
        self.wq, self.wk, self.wv, self.wg = (nn.Linear(embed, heads * head_dim, bias=False) for _ in range(4))
        self.wo = nn.Linear(heads * head_dim, embed, bias=False)
        self.core = Core()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v, g = (w(x).unflatten(-1, self.shape) for w in (self.wq, self.wk, self.wv, self.wg))
        return self.wo((self.core(q, k, v) * g.sigmoid()).flatten(2))


class Core(nn.Module):
    """Causal attention with a penalty for distance: [B, S, H, E] each."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        at = torch.arange(q.shape[1], device=q.device)
        far = (at[None, :] - at[:, None]).to(q.dtype)
        bias = 0.1 * far.masked_fill(far > 0, float("-inf"))
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2)


class FeedForward(nn.Module):
    def __init__(self, embed: int, width: int) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(embed, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, embed, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.a(x).relu() * self.b(x) + self.c(x))
