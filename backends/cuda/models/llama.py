"""The dense Llama family as plain modules: grouped-query attention, rotary positions, gated MLP.

Shapes: B sequences, S tokens, D embed, H heads, K kv_heads, E head_dim, F ffn, V vocab. Nothing here depends on a mesh.
Heads are reshaped with -1, so that the same code runs on local heads; a pipeline stage is this module with some
children set to None. Runs on torch 2.9 and later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right

from planc.ir.model import Model, Section


def build(model: Model) -> nn.Module:
    """Returns the module of a `model` of this family, on the current default device (meta included)."""
    return Llama(model)


class Llama(nn.Module):
    """Maps tokens [B, S] to logits [B, S, V]; a pipeline stage without an embedding takes hidden states [B, S, D].

    `block` is a function that builds a block of a given kind, for families with other blocks; None: dense blocks.
    """

    def __init__(self, model: Model, block: Callable[[Model, Section], nn.Module] | None = None) -> None:
        super().__init__()
        sizes = model.sizes
        self.tok_embeddings = nn.Embedding(sizes["vocab"], sizes["embed"])
        make = block or _block
        self.layers = nn.ModuleDict({str(i): make(model, kind) for i, kind in enumerate(model.kinds)})
        self.norm = nn.RMSNorm(sizes["embed"], eps=model.norm_eps)
        self.output = TiedHead() if model.tied else nn.Linear(sizes["embed"], sizes["vocab"], bias=False)
        self.tied = model.tied

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = tokens if tokens.is_floating_point() else self.tok_embeddings(tokens)
        for block in self.layers.values():
            hidden = block(hidden)
        hidden = hidden if self.norm is None else self.norm(hidden)
        given = (self.tok_embeddings.weight,) if self.tied and self.tok_embeddings is not None else ()
        logits: Tensor = hidden if self.output is None else self.output(hidden, *given)
        return logits


class TiedHead(nn.Module):
    """Maps hidden states [B, S, D] to logits [B, S, V] with the embedding's weight [V, D], passed as second argument.

    The head has no weight of its own: a weight in two modules would be stored, gathered and updated twice.
    """

    def forward(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return F.linear(hidden, weight)


class Block(nn.Module):
    """A residual block: maps hidden states [B, S, D] to [B, S, D]; under sequence parallelism S is the local part.

    `attention` and `feed_forward` are its two halves, each of which takes normed hidden states and returns what is
    added to the residual stream. The second half is registered under `name`, its name in the op graph.
    """

    def __init__(self, model: Model, attention: nn.Module, feed_forward: nn.Module, name: str = "feed_forward") -> None:
        super().__init__()
        embed = model.sizes["embed"]
        self.attention_norm = nn.RMSNorm(embed, eps=model.norm_eps)
        self.attention = attention
        self.ffn_norm = nn.RMSNorm(embed, eps=model.norm_eps)
        self.second = name
        self.add_module(name, feed_forward)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.attention(self.attention_norm(hidden))
        after: Tensor = hidden + self.get_submodule(self.second)(self.ffn_norm(hidden))
        return after


def _block(model: Model, kind: Section) -> Block:
    return Block(model, Attention(model, kind), FeedForward(model.sizes["embed"], model.sizes["ffn"]))


class Attention(nn.Module):
    """Grouped-query causal attention over full sequences, [B, S, D] to [B, S, D]; queries, keys and values have biases
    if the model has them (Qwen2)."""

    def __init__(self, model: Model, kind: Section) -> None:
        super().__init__()
        sizes = model.sizes
        embed, self.head_dim = sizes["embed"], sizes["head_dim"]
        biased = "layers.*.attention.wq.bias" in model.param
        self.wq = nn.Linear(embed, sizes["heads"] * self.head_dim, bias=biased)
        self.wk = nn.Linear(embed, sizes["kv_heads"] * self.head_dim, bias=biased)
        self.wv = nn.Linear(embed, sizes["kv_heads"] * self.head_dim, bias=biased)
        self.wo = nn.Linear(sizes["heads"] * self.head_dim, embed, bias=False)
        self.rotary = Rotary(self.head_dim, model.rope_theta, model.rope_scaling)
        self.core = Core(next(op.window for op in model.ops[kind] if op.kind == "attention"))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self._heads(linear(x)) for linear in (self.wq, self.wk, self.wv))
        mixed = self.core(*self._with_positions(q, k), v)
        out: Tensor = self.wo(mixed.flatten(2))
        return out

    def _with_positions(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.rotary(q), self.rotary(k)

    def _heads(self, x: Tensor) -> Tensor:
        """Reshapes [B, S, heads * E] to [B, S, heads, E], for the local number of heads."""
        return x.view(x.shape[0], x.shape[1], -1, self.head_dim)


class Core(nn.Module):
    """softmax(q k^T / sqrt(E)) v: q [B, S, H, E], k and v [B, T, K, E] to [B, S, H, E].

    The queries are the last S of the T tokens. A query attends to its own token and all tokens before it; with
    `window`, only to the last `window` of these tokens.
    """

    def __init__(self, window: int = 0) -> None:
        super().__init__()
        self.window = window

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        rows, tokens = q.shape[2], k.shape[2]
        seen = self._attention_mask(rows, tokens, q.device) if self.window or rows < tokens else None
        if self.window and q.device.type == "cuda":  # with a mask, only the math kernel supports grouped heads
            k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=seen is None, enable_gqa=True)
        return mixed.transpose(1, 2)

    def _attention_mask(self, rows: int, tokens: int, device: torch.device) -> Tensor:
        """Returns the mask [S, T]: True where a query (row) attends to a key (column)."""
        if not self.window and device.type == "cuda":
            return causal_lower_right(rows, tokens)  # the flash kernel knows it without a mask
        keys = torch.arange(tokens, device=device)
        queries = keys[tokens - rows :, None]
        seen = keys <= queries
        # One mask narrows the other in place: distances as integers would take eight times the bytes.
        return seen.logical_and_(keys > queries - self.window) if self.window else seen


class Rotary(nn.Module):
    """Rotates the pairs (i, i + E/2) of each head by position * theta^(-2i/E).

    The angles are computed on each call, S * E/2 numbers: a buffer would be lost in a meta-device build. `positions`
    are the positions of the input rows; None: 0 to S - 1. `scaling` is a config's rope scaling for longer contexts, of
    type `linear` or Llama 3's.
    """

    positions: Tensor | None = None

    def __init__(self, head_dim: int, theta: float, scaling: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.head_dim, self.theta, self.scaling = head_dim, theta, dict(scaling or {})

    def forward(self, x: Tensor) -> Tensor:
        turned: Tensor = Rotation.apply(x, *self._rotations(x.shape[1], x.device))  # type: ignore[no-untyped-call]
        return turned

    def _rotations(self, tokens: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Returns the cosine and sine of each angle, [S, 1, E/2], fp32."""
        even = torch.arange(0, self.head_dim, 2, device=device, dtype=torch.float32)
        positions = torch.arange(tokens, device=device) if self.positions is None else self.positions
        frequencies = self._scaled(self.theta ** (-even / self.head_dim))
        angles = torch.outer(positions.float(), frequencies)[:, None, :]
        return angles.cos(), angles.sin()

    def _scaled(self, frequencies: Tensor) -> Tensor:
        """Scales `frequencies` [E/2] (radians a token) for a longer context.

        Llama 3 keeps high frequencies, divides low ones, and interpolates in between (Llama Team 2024, "The Llama 3
        Herd of Models", and the code published with 3.1).
        """
        scaling = self.scaling
        if not scaling:
            return frequencies
        divided: Tensor = frequencies / scaling["factor"]
        if scaling["rope_type"] == "linear":
            return divided
        turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        share = ((turns - low) / (high - low)).clamp(0, 1)
        mixed: Tensor = (1 - share) * divided + share * frequencies
        return mixed


class Rotation(torch.autograd.Function):
    """Rotates the pairs (i, i + E/2) of x [B, S, H, E] by angles with this cosine and sine, [S, 1, E/2] in fp32. The
    backward rotates by the opposite angles, and needs nothing else."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return rotated(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return rotated(grads[0], cos, -sin), None, None


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Returns x rotated, rounded once from fp32. Both halves are written into one buffer, except for a compiler."""
    first, second = x.chunk(2, dim=-1)
    if torch.compiler.is_compiling() or x.device.type == "xla":
        return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1).to(x.dtype)
    turned = torch.empty_like(x)
    left, right = turned.chunk(2, dim=-1)
    torch.addcmul(first * cos, second, sin, value=-1, out=left)
    torch.addcmul(second * cos, first, sin, out=right)
    return turned


class FeedForward(nn.Module):
    """Gated MLP with hidden width F, [B, S, D] to [B, S, D]: w2(silu(w1 x) * w3 x)."""

    def __init__(self, embed: int, ffn: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(embed, ffn, bias=False)
        self.w3 = nn.Linear(embed, ffn, bias=False)
        self.w2 = nn.Linear(ffn, embed, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return out
