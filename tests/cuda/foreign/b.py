"""Small GPT with parallel attention and MLP branches (GPT-J style residual).

One LayerNorm per layer feeds both branches; their outputs are added to the
stream together.  Learned absolute positions, GELU MLP with biases, token
embedding scaled by sqrt(d_model) and tied with the output head.

Example input: tokens, LongTensor [batch, sequence], dtype int64, with values in
[0, 96) and sequence <= 96, e.g. torch.randint(0, 96, (2, 16)).
Returns logits, FloatTensor [batch, sequence, 96].
"""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


@dataclass
class Config:
    vocab_size: int = 96
    max_len: int = 96
    d_model: int = 64
    n_head: int = 8
    d_ff: int = 208
    n_layer: int = 2
    ln_eps: float = 1e-5


class ParallelBlock(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        D, H = cfg.d_model, cfg.n_head
        self.n_head = H
        self.d_head = D // H
        self.ln = nn.LayerNorm(D, eps=cfg.ln_eps)
        self.wq = nn.Linear(D, D)
        self.wk = nn.Linear(D, D, bias=False)  # a key bias cancels in the softmax
        self.wv = nn.Linear(D, D)
        self.wo = nn.Linear(D, D)
        self.fc_in = nn.Linear(D, cfg.d_ff)
        self.fc_out = nn.Linear(cfg.d_ff, D)
        mask = torch.tril(torch.ones(cfg.max_len, cfg.max_len, dtype=torch.bool))
        self.register_buffer("mask", mask)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.n_head, self.d_head))

    def attend(self, x: Tensor) -> Tensor:
        T = x.size(1)
        q = self._heads(self.wq(x)) * self.d_head**-0.5
        k = self._heads(self.wk(x))
        v = self._heads(self.wv(x))
        att = torch.einsum("bihd,bjhd->bhij", q, k).to(torch.float32)
        neg = torch.finfo(torch.float32).min
        att = torch.where(self.mask[:T, :T], att, torch.full_like(att, neg))
        att = torch.softmax(att, dim=-1, dtype=torch.float32).to(v.dtype)
        out = torch.einsum("bhij,bjhd->bihd", att, v)
        return self.wo(out.flatten(2))

    def mlp(self, x: Tensor) -> Tensor:
        return self.fc_out(F.gelu(self.fc_in(x)))

    def forward(self, x: Tensor) -> Tensor:
        h = self.ln(x)
        return x + self.attend(h) + self.mlp(h)


class ParallelGPT(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.cfg = cfg
        self.wte = nn.Embedding(cfg.vocab_size, cfg.d_model)
        self.wpe = nn.Parameter(torch.zeros(1, cfg.max_len, cfg.d_model))
        self.trunk = nn.Sequential(*[ParallelBlock(cfg) for _ in range(cfg.n_layer)])
        self.ln_f = nn.LayerNorm(cfg.d_model, eps=cfg.ln_eps)
        self.head_bias = nn.Parameter(torch.zeros(cfg.vocab_size))
        self.apply(self._init)
        # tied with the head: kept small, so that the first logits are small too
        nn.init.normal_(self.wte.weight, std=0.02)
        nn.init.normal_(self.wpe, std=0.02)
        for blk in self.trunk:
            for lin in (blk.wo, blk.fc_out):
                with torch.no_grad():
                    lin.weight.mul_((2 * cfg.n_layer) ** -0.5)

    @staticmethod
    def _init(m: nn.Module) -> None:
        if isinstance(m, nn.Linear):
            nn.init.xavier_uniform_(m.weight)
            if m.bias is not None:
                nn.init.zeros_(m.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        T = tokens.size(1)
        x = self.wte(tokens) * self.cfg.d_model**0.5 + self.wpe[:, :T]
        x = self.ln_f(self.trunk(x))
        return F.linear(x, self.wte.weight, self.head_bias)


def build() -> nn.Module:
    return ParallelGPT(Config())
