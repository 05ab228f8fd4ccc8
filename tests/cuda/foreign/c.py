"""
raw-matrix transformer LM.

No nn.Linear inside the layers: every weight is an nn.Parameter of layout
[in, out] and is used as ``x @ self.w``.  Grouped-query attention (8 query heads,
4 key/value heads), half-split rotary positions, a per-channel scale-and-shift
norm, squared-ReLU feed-forward, tanh soft cap on the logits.

example input
    tokens : LongTensor [batch, sequence], dtype int64, ids in [0, 136)
             e.g. torch.randint(136, (2, 16))
output
    logits : float32 [batch, sequence, 136]
"""
import torch
from torch import nn

VOCAB = 136
WIDTH = 32
DEPTH = 4
Q_HEADS = 8
KV_HEADS = 4
HIDDEN = 88
CAP = 15.0


def mat(n_in, n_out, gain=1.0):
    return nn.Parameter(torch.randn(n_in, n_out) * gain * n_in**-0.5)


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


class ScaleShift(nn.Module):
    """Normalise over channels, then a learned scale and shift per channel."""

    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        mu = x.mean(-1, keepdim=True)
        d = x - mu
        sd = (d.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
        return d / sd * self.scale + self.shift


class GQA(nn.Module):
    def __init__(self, width, nq, nkv, gain):
        super().__init__()
        self.nq, self.nkv, self.hd = nq, nkv, width // nq
        self.w_q = mat(width, nq * self.hd)
        self.w_k = mat(width, nkv * self.hd)
        self.w_v = mat(width, nkv * self.hd)
        self.w_o = mat(nq * self.hd, width, gain)

    def forward(self, x, cos, sin):
        B, S, _ = x.shape
        q = (x @ self.w_q).reshape(B, S, self.nq, self.hd).permute(0, 2, 1, 3)
        k = (x @ self.w_k).reshape(B, S, self.nkv, self.hd).permute(0, 2, 1, 3)
        v = (x @ self.w_v).reshape(B, S, self.nkv, self.hd).permute(0, 2, 1, 3)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        k = k.repeat_interleave(self.nq // self.nkv, dim=1)
        v = v.repeat_interleave(self.nq // self.nkv, dim=1)
        scores = q @ k.transpose(-2, -1) / self.hd**0.5
        future = torch.ones(S, S, dtype=torch.bool, device=x.device).triu(1)
        p = scores.masked_fill(future, float("-inf")).softmax(-1)
        y = (p @ v).permute(0, 2, 1, 3).reshape(B, S, self.nq * self.hd)
        return y @ self.w_o


class ReluSquared(nn.Module):
    def __init__(self, width, hidden, gain):
        super().__init__()
        self.w_in = mat(width, hidden)
        self.w_out = mat(hidden, width, gain)

    def forward(self, x):
        return (x @ self.w_in).relu().square() @ self.w_out


class Maker:
    """Makes the parts of one layer, so the sizes are written down once."""

    def __init__(self, width, nq, nkv, hidden, depth):
        self.width, self.nq, self.nkv, self.hidden = width, nq, nkv, hidden
        self.gain = (2 * depth) ** -0.5

    def layer(self):
        return nn.ModuleDict(
            {
                "pre_attn": ScaleShift(self.width),
                "attn": GQA(self.width, self.nq, self.nkv, self.gain),
                "pre_ffn": ScaleShift(self.width),
                "ffn": ReluSquared(self.width, self.hidden, self.gain),
            }
        )


class RawLM(nn.Module):
    def __init__(self):
        super().__init__()
        make = Maker(WIDTH, Q_HEADS, KV_HEADS, HIDDEN, DEPTH)
        self.table = nn.Parameter(torch.randn(VOCAB, WIDTH))
        self.stack = nn.ModuleDict({f"l{i}": make.layer() for i in range(DEPTH)})
        self.out_norm = ScaleShift(WIDTH)
        self.unembed = nn.Linear(WIDTH, VOCAB, bias=False)
        nn.init.normal_(self.unembed.weight, std=0.05)

    @staticmethod
    def angles(S, hd, device):
        freq = 1000.0 ** (-torch.arange(0, hd, 2, device=device).float() / hd)
        a = torch.arange(S, device=device).float()[:, None] * freq
        a = torch.cat((a, a), dim=-1)
        return a.cos(), a.sin()

    def forward(self, tokens):
        h = self.table[tokens]
        cos, sin = self.angles(tokens.shape[1], WIDTH // Q_HEADS, tokens.device)
        for part in self.stack.values():
            h = h + part["attn"](part["pre_attn"](h), cos, sin)
            h = h + part["ffn"](part["pre_ffn"](h))
        logits = self.unembed(self.out_norm(h))
        return CAP * torch.tanh(logits / CAP)


def build():
    return RawLM()
