"""A user's own model: another module than the bundled one, with the same names of children.

Imports torch alone. LayerNorm, GELU and attention by distance instead of RMSNorm, SiLU and rotary
positions: the emitted file asks only for the names of children.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LAYERS, EMBED, HEADS, KV_HEADS, FFN, VOCAB = 4, 256, 8, 4, 688, 256
HEAD_DIM = EMBED // HEADS


class OwnAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wq = nn.Linear(EMBED, HEADS * HEAD_DIM, bias=False)
        self.wk = nn.Linear(EMBED, KV_HEADS * HEAD_DIM, bias=False)
        self.wv = nn.Linear(EMBED, KV_HEADS * HEAD_DIM, bias=False)
        self.wo = nn.Linear(HEADS * HEAD_DIM, EMBED, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (w(x).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for t in (k, v))
        at = torch.arange(q.shape[2])
        far = (at[None, :] - at[:, None]).float()
        scores = q @ k.transpose(2, 3) / HEAD_DIM**0.5 + 0.1 * far.masked_fill(far > 0, float("-inf"))
        return self.wo((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class OwnFeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1 = nn.Linear(EMBED, FFN, bias=False)
        self.w3 = nn.Linear(EMBED, FFN, bias=False)
        self.w2 = nn.Linear(FFN, EMBED, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.gelu(self.w1(x)) * self.w3(x))


class OwnBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.LayerNorm(EMBED, bias=False), nn.LayerNorm(EMBED, bias=False)
        self.attention, self.feed_forward = OwnAttention(), OwnFeedForward()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class OwnModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCAB, EMBED)
        self.layers = nn.ModuleDict({str(i): OwnBlock() for i in range(LAYERS)})
        self.norm = nn.LayerNorm(EMBED, bias=False)
        self.output = nn.Linear(EMBED, VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tok_embeddings(tokens)
        for block in self.layers.values():
            x = block(x)
        return self.output(self.norm(x))
