"""Small modules with one leak each, on the line that ends with its code."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

SEEN: dict[str, Tensor] = {}


def example_inputs(step: int) -> tuple[Tensor]:
    return (torch.randn(4, 8, generator=torch.Generator().manual_seed(step)),)


class Leaky(nn.Module):
    """A linear module [4, 8] to [4, 8], with something of its own in between."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.steps = 0
        self.kept: list[Tensor] = []
        self.limits = {"high": 0.0}
        self.register_buffer("table", torch.zeros(8))

    def forward(self, x: Tensor) -> Any:
        return self.linear(self.between(x))

    def between(self, x: Tensor) -> Tensor:
        return x


class Item(Leaky):
    def between(self, x: Tensor) -> Tensor:
        return x * x.abs().max().item()  # E1201 E1202


class Branch(Leaky):
    def between(self, x: Tensor) -> Tensor:
        if x.sum() > 1e9:  # E1201
            return -x
        return x


class ToHost(Leaky):
    def between(self, x: Tensor) -> Tensor:
        return x + x.detach().mean(0).to("cpu")  # E1201


class Listed(Leaky):
    def between(self, x: Tensor) -> Tensor:
        first = x.detach()[0].tolist()  # E1201
        return x if len(first) == 8 else -x


class Equal(Leaky):
    def between(self, x: Tensor) -> Tensor:
        return x if torch.equal(x, x) else -x  # E1201


class StepNumber(Leaky):
    def between(self, x: Tensor) -> Tensor:
        self.steps += 1
        return x * (1 - 0.9**self.steps)  # E1202


class Alternating(Leaky):
    def between(self, x: Tensor) -> Tensor:
        self.steps += 1
        if self.steps % 2:
            x = x.relu()  # E1202
        return x.sin()


class Kept(Leaky):
    def between(self, x: Tensor) -> Tensor:
        self.kept.append(x)  # E1203
        return x


class Noted(Leaky):
    def between(self, x: Tensor) -> Tensor:
        SEEN["last"] = x  # E1203
        return x


class HandedOn(Leaky):
    def between(self, x: Tensor) -> Tensor:
        note(self.kept, x)
        return x


def note(into: list[Tensor], x: Tensor) -> None:
    into += [x]  # E1203


class Masked(Leaky):
    def between(self, x: Tensor) -> Tensor:
        return x + x[x > 0].mean()  # E1204


class Nonzero(Leaky):
    def between(self, x: Tensor) -> Tensor:
        return x + (x > 0).nonzero().float().mean()  # E1204


class MaskedStore(Leaky):
    def between(self, x: Tensor) -> Tensor:
        x = x.clone()
        x[x > 1] = 1.0  # E1204
        return x


class Repeated(Leaky):
    def between(self, x: Tensor) -> Tensor:
        times = torch.arange(4, device=x.device)
        return x + x.repeat_interleave(times, 0).mean(0)  # E1204


class InTheBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] * float(grads[0].max() > 1e9)  # E1201


class Backward(Leaky):
    def between(self, x: Tensor) -> Tensor:
        return InTheBackward.apply(self.linear(x))


class Fine(Leaky):
    """A module that looks as if it leaked: a buffer, a list of one call, numbers and masks on the device."""

    def between(self, x: Tensor) -> Tensor:
        parts = []
        parts.append(torch.where(x > 0, x, -x))
        self.table[0] = 1.0
        self.table.add_(1)
        half = torch.full((), 0.5, device=x.device)
        rows = torch.arange(len(x), device=x.device)
        assert x.device.type == "xla" and x.shape[0] == 4
        return torch.cat(parts)[rows] * half + self.limits["high"] + self.table.mean()
