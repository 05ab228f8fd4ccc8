"""Sparrow: a tiny pre-norm causal language model.

Rotary positions (complex arithmetic), fused query/key/value weights stored per
head as [q | k | v], RMS normalisation with a zero-centred gain, SwiGLU with the
gate and the lift in one matrix.

Example input: ``tokens``, a LongTensor of shape [batch, sequence], dtype int64,
values in [0, 112), e.g. ``torch.randint(0, 112, (2, 16))``.  The sequence is at
most 128 long.  Output: logits [batch, sequence, 112].
"""
import math

import torch
import torch.nn.functional as F
from torch import nn


def spinners(dim, length, theta=10000.0):
    """Unit complex numbers e^{i t w_j}, [length, dim / 2]."""
    w = theta ** (-torch.arange(0, dim, 2).float() / dim)
    ang = torch.outer(torch.arange(length).float(), w)
    return torch.polar(torch.ones_like(ang), ang)


def spin(x, z):
    # x: [b, t, h, d], z: [t, d/2]; neighbouring pairs are one complex number
    xc = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    out = torch.view_as_real(xc * z[None, :, None, :]).flatten(-2)
    return out.type_as(x)


class Calm(nn.Module):
    def __init__(self, n, tiny=1e-6):
        super().__init__()
        self.tiny = tiny
        self.g = nn.Parameter(torch.zeros(n))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.tiny)
        return (y * (1.0 + self.g.float())).type_as(x)


class Gaze(nn.Module):
    """Causal self-attention; rows of ``tri`` go head by head: q, k, v."""

    def __init__(self, n, eyes):
        super().__init__()
        self.eyes = eyes
        self.span = n // eyes
        self.tri = nn.Linear(n, 3 * n, bias=False)
        self.blend = nn.Linear(n, n, bias=False)

    def forward(self, x, z):
        b, t, _ = x.shape
        m = self.tri(x).view(b, t, self.eyes, 3 * self.span)
        q, k, v = m.split(self.span, dim=-1)
        q, k = spin(q, z), spin(k, z)
        q, k, v = (u.transpose(1, 2) for u in (q, k, v))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.blend(o.transpose(1, 2).reshape(b, t, -1))


class Mull(nn.Module):
    def __init__(self, n, wide):
        super().__init__()
        self.fan = nn.Linear(n, 2 * wide, bias=False)
        self.fold = nn.Linear(wide, n, bias=False)

    def forward(self, x):
        gate, lift = self.fan(x).chunk(2, dim=-1)
        return self.fold(F.silu(gate) * lift)


class Rung(nn.Module):
    def __init__(self, n, eyes, wide):
        super().__init__()
        self.hush1 = Calm(n)
        self.gaze = Gaze(n, eyes)
        self.hush2 = Calm(n)
        self.mull = Mull(n, wide)

    def forward(self, x, z):
        x = x + self.gaze(self.hush1(x), z)
        return x + self.mull(self.hush2(x))


class Sparrow(nn.Module):
    def __init__(self, symbols=112, n=48, eyes=4, wide=120, rungs=3, reach=128):
        super().__init__()
        self.lexicon = nn.Embedding(symbols, n)
        self.ladder = nn.ModuleList(Rung(n, eyes, wide) for _ in range(rungs))
        self.last_hush = Calm(n)
        self.speak = nn.Linear(n, symbols, bias=False)
        self.register_buffer("wheel", spinners(n // eyes, reach), persistent=False)

        for p in self.modules():
            if isinstance(p, (nn.Linear, nn.Embedding)):
                nn.init.normal_(p.weight, std=0.02)
        for r in self.ladder:
            for out in (r.gaze.blend, r.mull.fold):
                nn.init.normal_(out.weight, std=0.02 / math.sqrt(2 * rungs))

    def forward(self, tokens):
        x = self.lexicon(tokens)
        z = self.wheel[: tokens.shape[1]]
        for rung in self.ladder:
            x = rung(x, z)
        return self.speak(self.last_hush(x))


def build():
    return Sparrow()
