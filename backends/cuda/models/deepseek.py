"""The DeepSeek family: latent attention, dense first layers, then layers of routed experts and a shared one.

Shapes use the letters of llama.py. The head dim of queries and keys is N + P (nope_dim, rope_dim), that of values is E.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from planc.backends.cuda.models.llama import Block, Core, FeedForward, Llama, Rotary
from planc.backends.cuda.models.moe import MoE
from planc.ir.model import Model, Section


def build(model: Model) -> nn.Module:
    """Returns the module of a `model` of this family, on the current default device (meta included)."""
    return Llama(model, _block)


def _block(model: Model, kind: Section) -> Block:
    attention = LatentAttention(model)
    if any(op.kind == "route" for op in model.ops[kind]):
        return Block(model, attention, MoE(model), "moe")
    return Block(model, attention, FeedForward(model.sizes["embed"], model.sizes["ffn"]))


class LatentAttention(nn.Module):
    """Multi-head latent attention over full sequences, [B, S, D] to [B, S, D] (DeepSeek-V2, section 2.1).

    All heads share the rotary part of the keys, [B, S, P]. Without `q_lora`, queries have no latent.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        sizes = model.sizes
        embed, heads, self.head_dim = sizes["embed"], sizes["heads"], sizes["head_dim"]
        self.nope_dim, self.rope_dim = sizes["nope_dim"], sizes["rope_dim"]
        query = heads * (self.nope_dim + self.rope_dim)
        if "q_lora" in sizes:
            self.wq_a = nn.Linear(embed, sizes["q_lora"], bias=False)
            self.q_norm = nn.RMSNorm(sizes["q_lora"], eps=model.norm_eps)
            self.wq_b = nn.Linear(sizes["q_lora"], query, bias=False)
        else:
            self.wq = nn.Linear(embed, query, bias=False)
        self.wkv_a = nn.Linear(embed, sizes["kv_lora"], bias=False)
        self.kv_norm = nn.RMSNorm(sizes["kv_lora"], eps=model.norm_eps)
        self.wk_rope = nn.Linear(embed, self.rope_dim, bias=False)
        self.wk_b = nn.Linear(sizes["kv_lora"], heads * self.nope_dim, bias=False)
        self.wv_b = nn.Linear(sizes["kv_lora"], heads * self.head_dim, bias=False)
        self.wo = nn.Linear(heads * self.head_dim, embed, bias=False)
        self.rotary = Rotary(self.rope_dim, model.rope_theta)
        self.keys = HeadKeys(self.rope_dim, model.rope_theta)
        self.core = Core()

    def forward(self, x: Tensor) -> Tensor:
        q = _heads(self._queries(x), self.nope_dim + self.rope_dim)
        still, turning = torch.split(q, [self.nope_dim, self.rope_dim], dim=-1)
        q = torch.cat((still, self.rotary(turning)), dim=-1)
        latent = self.kv_norm(self.wkv_a(x))
        k, v = _heads(self.wk_b(latent), self.nope_dim), _heads(self.wv_b(latent), self.head_dim)
        out: Tensor = self.wo(self.core(q, self.keys(k, self.wk_rope(x)), v).flatten(2))
        return out

    def _queries(self, x: Tensor) -> Tensor:
        """Returns the queries [B, S, H * (N + P)] of the local heads."""
        q: Tensor = self.wq_b(self.q_norm(self.wq_a(x))) if hasattr(self, "wq_b") else self.wq(x)
        return q


class HeadKeys(nn.Module):
    """Rotates the shared part [B, S, P] of the keys, and concatenates it to each head's own part [B, S, H, N]: returns
    [B, S, H, N + P]."""

    def __init__(self, rope_dim: int, theta: float) -> None:
        super().__init__()
        self.rotary = Rotary(rope_dim, theta)

    def forward(self, own: Tensor, shared: Tensor) -> Tensor:
        turned = self.rotary(shared[:, :, None])
        return torch.cat((own, turned.expand(-1, -1, own.shape[2], -1)), dim=-1)


def _heads(x: Tensor, width: int) -> Tensor:
    """Reshapes [B, S, H * width] to [B, S, H, width]."""
    return x.view(x.shape[0], x.shape[1], -1, width)
