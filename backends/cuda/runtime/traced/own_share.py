"""Makes the code of a user's attention work on a tensor-parallel rank, where it refers to the number of all heads."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from planc.backends.cuda.runtime.traced.roles import AttentionLayers, ByHeads

NOT_OF_ALL_HEADS = (
    *("head_dim", "head_size", "head_width", "d_head", "dim_head", "per_head", "rotary", "layer", "window", "max_"),
    "group",
)
"""Words in the names of attributes whose value equals a number of heads by coincidence."""


@dataclass(frozen=True)
class Share:
    """The heads of one tensor-parallel rank: number of query heads (`heads`) and of key heads (`kv_heads`)."""

    ranks: int
    rank: int
    heads: int
    kv_heads: int

    @classmethod
    def of(cls, a: AttentionLayers, ranks: int, rank: int = 0) -> Share:
        """Returns the heads of rank number `rank` of `ranks`. If keys are replicated, `kv_heads` is the number of key
        heads that the rank's query heads use."""
        heads = a.heads // ranks
        if not a.keys_whole:
            return cls(ranks, rank, heads, a.kv_heads // ranks)
        each = a.heads // a.kv_heads
        return cls(ranks, rank, heads, max(1, heads // each))


class OnShare:
    """A pre-hook of attention: at its first call, changes the numbers of heads in the module to the local ones."""

    def __init__(self, holder: nn.Module, a: AttentionLayers) -> None:
        """`holder` is the module that contains the layers of the attention `a`."""
        self.holder, self.a, self.done = holder, a, False

    def __call__(self, module: nn.Module, args: Any) -> None:
        if self.done:
            return
        self.done = True
        share = share_of(self.holder, self.a)
        if share.ranks > 1:
            localise(module, self.a, share)


def share_of(attention: nn.Module, a: AttentionLayers) -> Share:
    """Returns this rank's share of the heads, from the shape of the query weight in `attention`."""
    modules: Any = attention._modules
    weight = modules["wq_b" if a.latent and a.latent.q_up else "wq"].weight
    if not isinstance(weight, DTensor):
        return Share.of(a, a.heads * a.head_dim // weight.shape[0])
    ranks = weight.shape[0] // weight.to_local().shape[0]
    return Share.of(a, ranks, weight.device_mesh.get_local_rank() if ranks > 1 else 0)


def localise(holder: nn.Module, a: AttentionLayers, share: Share) -> None:
    """Replaces the number of heads and the width of all heads by those of `share`, in the attributes of `holder` and in
    a copy of its config."""
    here = _here(a, share)
    for name, value in list(vars(holder).items()):
        plain = isinstance(value, int) and not isinstance(value, bool)
        if plain and name not in a.whole:
            if value in here and not any(word in name for word in NOT_OF_ALL_HEADS):
                holder.__dict__[name] = here[value]
            elif "group" in name and value == a.heads // a.kv_heads:
                holder.__dict__[name] = share.heads // share.kv_heads
    config = getattr(holder, "config", None)
    if config is not None:
        own = copy.copy(config)
        for name in ("num_attention_heads", "num_key_value_heads", "hidden_size"):
            if isinstance(value := getattr(own, name, None), int) and value in here:
                setattr(own, name, here[value])
        holder.__dict__["config"] = own


def _here(a: AttentionLayers, share: Share) -> dict[int, int]:
    """Returns a map from the numbers and widths of all heads to those of the local heads."""
    numbers = {a.kv_heads: share.kv_heads, a.heads: share.heads}
    every = {a.heads + 2 * a.kv_heads: share.heads + 2 * share.kv_heads, **numbers}
    widths = {whole * a.head_dim: own * a.head_dim for whole, own in every.items()}
    values = {a.heads * a.value_dim: share.heads * a.value_dim} if a.value_dim else {}
    return widths | values | numbers


class OwnKeys(nn.Module):
    """Returns keys and values unchanged. If these are replicated, the module's parallel style selects those of the
    local heads, [B, S, heads, width], and sums their gradients."""

    def forward(self, q: Tensor, *given: Tensor) -> Any:
        return given


class KeyLayer:
    """Calls a layer that computes keys or values of all heads, and returns those of the local heads."""

    def __init__(self, holder: nn.Module, name: str, a: AttentionLayers) -> None:
        self.holder, self.name, self.a = holder, name, a

    def __call__(self, x: Tensor) -> Tensor:
        modules: Any = self.holder._modules
        made: Tensor = modules[self.name](x)
        share = share_of(self.holder, self.a)
        if share.ranks == 1:
            return made
        queries = made.new_empty(()).expand(*made.shape[:-1], share.heads, 1)
        own: Tensor = modules["core"](queries, made.view(*made.shape[:-1], self.a.kv_heads, -1))[0]
        return own.flatten(-2)


class Scores(nn.Module):
    """Returns its weight: the attention sink scores, one per local head."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self) -> Tensor:
        return self.weight.view_as(self.weight)


def split(args: Any, kwargs: Any) -> tuple[Tensor, Any, Any]:
    """Returns the hidden state among the arguments of a block (`args`, `kwargs`), and all other arguments."""
    if args:
        return args[0], args[1:], kwargs
    key = next(k for k, v in kwargs.items() if isinstance(v, Tensor))
    return kwargs[key], (), {k: v for k, v in kwargs.items() if k != key}


class OwnArguments:
    """A pre-hook of a block: reduces the arguments with one value per head to those of the local heads."""

    def __init__(self, attention: nn.Module, a: AttentionLayers) -> None:
        """`attention` is the module that contains the layers of the attention `a`."""
        self.attention, self.a = attention, a

    def __call__(self, block: nn.Module, args: Any, kwargs: Any) -> Any:
        share = share_of(self.attention, self.a)
        hidden, rest, named = split(args, kwargs)
        args, kwargs = list(rest), dict(named)
        for given in self.a.by_heads:
            place = args if isinstance(given.name, int) else kwargs
            place[given.name] = _of_heads(place[given.name], given, share)
        return (hidden, *args), kwargs


def _of_heads(whole: Tensor, given: ByHeads, share: Share) -> Tensor:
    first, dim = share.rank * share.heads, given.dim
    if not given.of_batch:
        return whole.narrow(dim, first, share.heads)
    parts = _apart(whole, dim, share.heads * share.ranks).narrow(dim + 1, first, share.heads)
    return parts.flatten(dim, dim + 1)


def _apart(whole: Tensor, dim: int, heads: int) -> Tensor:
    """Splits the dim `dim`, which merges sequences and heads, into two dims."""
    return whole.reshape(*whole.shape[:dim], -1, heads, *whole.shape[dim + 1 :])


def arguments_by_heads(args: tuple[Any, ...], kwargs: dict[str, Any], heads: int, batch: int) -> list[ByHeads]:
    """Returns the arguments of a block that may have one value for each of `heads`, in a run on `batch` sequences.

    An argument whose dim merges sequences and heads is returned only if all sequences have equal values.
    """
    found = []
    named: list[tuple[str | int, Any]] = [*enumerate(args), *kwargs.items()]
    for name, value in named:
        if not isinstance(value, Tensor):
            continue
        for dim, length in enumerate(value.shape):
            if length == heads:
                found.append(ByHeads(name, dim, of_batch=False))
                break
            if length == batch * heads and value.device.type != "meta":
                parts = _apart(value, dim, heads).movedim(dim, 0)
                if all(torch.equal(part, parts[0]) for part in parts):
                    found.append(ByHeads(name, dim, of_batch=True))
                    break
    return found
