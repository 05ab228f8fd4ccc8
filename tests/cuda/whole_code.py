"""Decoders with code that planc has no op for: halves of blocks, and whole ones."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.cuda.ways_of_writing import DEPTH, WIDTH, Attention, Ends, feed_forward


class Mixing(nn.Module):
    """Tokens are mixed by a decayed mean, and it returns what it decayed with."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.back = nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH, bias=False)
        self.decay = nn.Parameter(torch.randn(24))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        ages = torch.arange(x.shape[1], device=x.device)
        late = (ages[:, None] - ages).clamp(min=0)[..., None] * F.softplus(self.decay)
        weights = torch.exp(-late) * (ages[:, None] >= ages)[..., None]
        return self.back(torch.einsum("stc,btc->bsc", weights, self.into(x))), weights


class Shaped(nn.Module):
    """A feed-forward layer whose activation has a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 72), nn.Linear(72, WIDTH)
        self.slope = nn.Parameter(torch.rand(1))

    def forward(self, x: Tensor) -> Any:
        made = self.up(x)
        return self.down(torch.where(made > 0, made, made * self.slope))


class Block(nn.Module):
    """Each half is a module behind a norm."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Any:
        made = self.first(self.before(x))
        x = x + (made[0] if isinstance(made, tuple) else made)
        return x + self.second(self.between(x))


class Inside(nn.Module):
    """A block with all of its steps in itself, of which none is attention; it returns a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.into, self.back = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 40), nn.Linear(40, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        made = self.into(self.norm(x)).cumsum(1)
        return x + self.back(torch.tanh(made)), 1


class Between(nn.Module):
    """A block whose layers could be halves by their shapes, with a step from token to token between them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.into, self.back = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Any:
        return x + self.back(torch.tanh(self.into(self.norm(x)).cumsum(1)))


class Halves(Ends):
    """Attention in some blocks, another first half in the others; a second half that is code in one of them."""

    def __init__(self) -> None:
        super().__init__()
        plain = (Attention(normed=False), feed_forward(normed=False))
        kinds = (plain, (Mixing(), feed_forward(normed=False)), (Attention(normed=False), Shaped()))
        self.blocks = nn.ModuleList(Block(*kind) for kind in kinds)

    def forward(self, ids: Tensor) -> Any:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Whole(Ends):
    """Blocks of which no half is known."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Inside() for _ in range(DEPTH))

    def forward(self, ids: Tensor) -> Any:
        x = self.words(ids)
        for block in self.blocks:
            x, _ = block(x)
        return self.head(self.norm(x))


class Mixers(Ends):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Between() for _ in range(DEPTH))

    def forward(self, ids: Tensor) -> Any:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


WHOLE_CODE: dict[str, type[nn.Module]] = {"code_in_halves": Halves, "code_in_blocks": Whole, "code_between": Mixers}
