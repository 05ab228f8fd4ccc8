"""Tests on the meta device whether a user's attention runs with only some of its heads; needs no process group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from planc.backends.cuda.runtime.traced.bind import BoundModel
from planc.backends.cuda.runtime.traced.bind_block import common_path, places_of
from planc.backends.cuda.runtime.traced.free_names import part_at
from planc.backends.cuda.runtime.traced.loops import with_blocks
from planc.backends.cuda.runtime.traced.names import CHANNELS, MIXER
from planc.backends.cuda.runtime.traced.own_share import OwnArguments, Share, arguments_by_heads, localise, split
from planc.backends.cuda.runtime.traced.read import SEQUENCES, TOKENS, roles_of_module
from planc.backends.cuda.runtime.traced.record import ForwardRecord, record
from planc.backends.cuda.runtime.traced.roles import (
    CORES,
    LINEAR,
    AttentionLayers,
    BlockLayers,
    ByHeads,
    Code,
    DecoderRoles,
    FeedForwardLayers,
    UnknownError,
    heads_of,
)
from planc.backends.cuda.runtime.traced.shell import place, without_weights
from planc.diag import PlanError

MOST_UNSURE = 3
"""Maximum number of ambiguous attributes that are tried together."""


def on_a_share(
    model: nn.Module, roles: DecoderRoles, ranks: int, *, keys_whole: bool = False, sequence: bool = False
) -> tuple[DecoderRoles, str]:
    """Returns `roles` changed so that heads can be sharded over `ranks`, and the reason if they cannot be; "" if they
    can.

    With `keys_whole`, keys and values are replicated; with `sequence`, tokens are sharded too. An attribute of the
    module that equals both a number of heads and a head dim is tried as either. Arguments with one value per head are
    sharded only if the code fails otherwise.
    """
    roles = _with(roles, keys_whole=keys_whole)
    sequence = sequence and any(map(_has_some_tokens, roles.blocks))
    why, rows = _tried(model, roles, ranks, sequence)
    number, a = next((n, b.heads) for n, b in enumerate(roles.blocks) if b.heads is not None)
    shell = with_blocks(without_weights(model), roles.loop)
    holder = shell.get_submodule(f"{roles.layers}.{number}").get_submodule(common_path([a.q.place, a.out.place]))
    both = [n for n, v in vars(holder).items() if type(v) is int and v == a.head_dim]
    given = arguments(model, roles) if why else []
    for count in range(min(len(both), MOST_UNSURE) + 1) if why else ():
        for names in combinations(both, count):
            for found in dict.fromkeys(((), tuple(given))):
                tried = _with(roles, whole=names, by_heads=found)
                if tried == roles:
                    continue
                again, rows = _tried(model, tried, ranks, sequence)
                if not again:
                    return _with(tried, rows_here=rows), ""
    return (roles, why) if why else (_with(roles, rows_here=rows), "")


def _has_some_tokens(block: BlockLayers) -> bool:
    """True if, under sequence parallelism, the block's own code sees only the tokens of this rank."""
    halves = [h for h in (block.attention, block.second) if isinstance(h, AttentionLayers | FeedForwardLayers)]
    inside = [not common_path(places_of(h)) for h in halves]
    inside += [h.before is not None and h.before.path.startswith(f"{common_path(places_of(h))}.") for h in halves]
    return (block.heads is not None and block.heads.latent is not None) or any(inside)


def _with(roles: DecoderRoles, **changes: Any) -> DecoderRoles:
    """Returns `roles` with other values for fields of every block's attention."""
    changed = (replace(b, attention=replace(b.heads, **changes)) if b.heads is not None else b for b in roles.blocks)
    return replace(roles, blocks=tuple(changed))


def arguments(model: nn.Module, roles: DecoderRoles) -> list[ByHeads]:
    """Returns the arguments of the blocks of `model` that may have one value per head. `roles` names the model's parts.
    The model runs without weights."""
    number, a = next((n, b.heads) for n, b in enumerate(roles.blocks) if b.heads is not None)
    bound = BoundModel(without_weights(model).eval(), roles, TOKENS)
    tokens = torch.zeros(SEQUENCES, TOKENS, dtype=torch.long)
    bound.called_with = (tokens, {})
    try:
        bound.look(torch.float32)
    except Exception:  # the model's own code fails without weights
        return []
    args, kwargs = bound.given[str(number)]
    return arguments_by_heads(args, kwargs, a.heads, SEQUENCES)


def refusal(model: nn.Module, roles: DecoderRoles, ranks: int) -> str:
    """Returns why the heads of `model` (parts: `roles`) cannot be sharded over `ranks`; "" if they can."""
    return _tried(model, roles, ranks, False)[0]


def _tried(
    model: nn.Module, roles: DecoderRoles, ranks: int, sequence: bool
) -> tuple[str, tuple[tuple[int, ...], ...]]:
    """Returns the reason why heads cannot be sharded over `ranks` ("" if they can), and the order of a fused layer's
    rows for the local heads (() if it is that of all heads). With `sequence`, tokens are sharded too."""
    bound = BoundModel(without_weights(model).eval(), roles, TOKENS)
    for block, role in zip(bound.layers.values(), roles.blocks, strict=True):
        if role.heads is not None:
            _narrow(part_at(block, "attention"), role.heads, ranks)
            _gather_norms(part_at(block, "attention"), role.heads, ranks)
        if sequence:
            _divide_sequence(block, ranks)
    tokens = torch.zeros(SEQUENCES, TOKENS, dtype=torch.long, device="meta")
    try:
        made = record(bound, bound, tokens, skips=True)
    except Exception as error:  # the model's own code may reject these shapes
        return f"{place(error)}: its attention cannot be sharded over heads: {str(error).splitlines()[0][:200]}", ()
    a = heads_of(roles)
    assert a is not None
    wrong = next(_wrong(made, roles, a, ranks), None)
    rows: tuple[tuple[int, ...], ...] = ()
    if wrong is None and a.rows:
        try:
            rows = _rows_of_a_share(model, roles, ranks)
        except (UnknownError, PlanError):
            wrong = a.q.weight
    return f"{wrong}: its attention cannot be sharded over heads" if wrong is not None else "", rows


def _rows_of_a_share(model: nn.Module, roles: DecoderRoles, ranks: int) -> tuple[tuple[int, ...], ...]:
    """Returns the order of a fused layer's rows that the code needs for local heads; () if it is that of all heads.
    Raises UnknownError."""
    own = with_blocks(without_weights(model).eval(), roles.loop)
    for number, role in enumerate(roles.blocks):
        if (a := role.heads) is None:
            continue
        share = Share.of(a, ranks)
        block = own.get_submodule(f"{roles.layers}.{number}")
        made = (share.heads + 2 * share.kv_heads) * a.head_dim
        for layer, width, dim in ((a.q, made, 0), (a.out, a.out.taken // ranks, 1)):
            module: Any = block.get_submodule(layer.path)
            weight, bias = (n.rpartition(".")[2] for n in (layer.weight, layer.bias))
            shape = [layer.made, layer.taken]
            shape[dim] = width
            stored = shape[::-1] if layer.transposed else shape
            setattr(module, weight, nn.Parameter(torch.empty(stored, device="meta")))
            if layer.bias and dim == 0:
                setattr(module, bias, nn.Parameter(torch.empty(width, device="meta")))
            if hasattr(module, "nf") and dim == 0:  # a layer with an attribute for its output width
                module.nf = width
        localise(block.get_submodule(common_path([a.q.place, a.out.place])), a, share)
        if a.by_heads:
            block.register_forward_pre_hook(OwnArguments(_Queries(share.heads * a.head_dim), a), with_kwargs=True)
    here, a = heads_of(roles_of_module(own)), heads_of(roles)
    assert a is not None
    found, share = here.rows if here is not None else (), Share.of(a, ranks)
    lengths = tuple(n * a.head_dim for n in (share.heads, share.kv_heads, share.kv_heads))
    if tuple(map(len, found)) != lengths:
        raise UnknownError(f"{a.q.weight} makes other queries and keys for a shard of the heads")
    first = torch.tensor([row for whole, n in zip(a.rows, lengths, strict=True) for row in whole[:n]])
    places = first.argsort().argsort().tolist()
    return () if [row for rows in found for row in rows] == places else found


class _Queries(nn.Module):
    """Stands in for an attention with local heads: its query layer has `rows` outputs."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.wq = nn.Linear(1, rows, device="meta")


def _narrow(attention: nn.Module, a: AttentionLayers, ranks: int) -> None:
    """Replaces the weights of `attention` by empty ones with the shapes of one of `ranks` ranks."""
    share = Share.of(a, ranks)
    own = ("wk_b", "wv_b") if a.latent else () if a.keys_whole else ("wk", "wv")
    for name in ("wq_b" if a.latent and a.latent.q_up else "wq", *own, "wo"):
        whole: Any = part_at(attention, name)
        taken, made = whole.in_features, whole.out_features
        taken, made = (taken // ranks, made) if name == "wo" else (taken, made // ranks)
        whole.weight = nn.Parameter(torch.empty(made, taken, device="meta"))
        if whole.bias is not None:
            whole.bias = nn.Parameter(torch.empty(made, device="meta"))
    if a.keys_whole:
        picks = slice(0, share.kv_heads)
        core = part_at(attention, "core")
        core.register_forward_pre_hook(lambda _, given: (given[0], *(x[:, :, picks] for x in given[1:])))
    if a.sinks:
        scores: Any = part_at(attention, "head_sinks")
        scores.weight = nn.Parameter(torch.empty(share.heads, device="meta"))


def _divide_sequence(block: nn.Module, ranks: int) -> None:
    """Makes `block` run on one of `ranks` shards of the sequence, gathered where a program gathers it."""
    here = TOKENS // ranks

    def gathered(_: nn.Module, given: Any) -> Any:
        return tuple(torch.cat([x] * ranks, dim=1) if isinstance(x, Tensor) and x.dim() == 3 else x for x in given)

    def divided(_: nn.Module, args: Any, kwargs: Any) -> Any:
        hidden, rest, named = split(args, kwargs)
        return (hidden[:, :here], *rest), named

    def whole(_: nn.Module, given: Any, made: Any) -> Any:
        first = made if isinstance(made, Tensor) else made[0]
        first = torch.cat([first] * ranks, dim=1)
        return first if isinstance(made, Tensor) else (first, *made[1:])

    parts = dict(block.named_modules())
    latent = "attention.wkv_a" in parts
    inner = ("wq" if "attention.wq" in parts else "wq_b", "wk_b", "wv_b", "keys")
    gathers = [f"attention.{name}" for name in inner] if latent else ["attention"]
    for path in (*gathers, "feed_forward", "moe.shared"):
        if path in parts:
            parts[path].register_forward_pre_hook(gathered)
    for path in ("attention.wo", "feed_forward.w2", "moe.shared.w2"):
        if path in parts:
            parts[path].register_forward_hook(lambda _, given, made: made[:, :here])
    block.register_forward_pre_hook(divided, with_kwargs=True, prepend=True)
    block.register_forward_hook(whole)


def _gather_norms(attention: nn.Module, a: AttentionLayers, share: int) -> None:
    """Makes norms over all heads gather the heads of all `share` ranks and return the local ones."""
    for name, norm, heads in (("q_norm", a.q_norm, a.heads), ("k_norm", a.k_norm, a.kv_heads)):
        if norm is not None and norm.over_all(heads, a.head_dim):
            module = part_at(attention, name)
            module.register_forward_pre_hook(lambda _, given: (torch.cat([given[0]] * share, dim=-1), *given[1:]))
            module.register_forward_hook(lambda _, given, made: made[..., : made.shape[-1] // share])


def _wrong(made: ForwardRecord, roles: DecoderRoles, a: AttentionLayers, share: int) -> Iterator[str]:
    """Yields the source line of each call whose queries or scores do not have the size for `a.heads` / `share` heads,
    the heads of one rank."""
    rows = SEQUENCES * a.heads // share * TOKENS
    apart = tuple(f"layers.{n}.{MIXER}" for n, b in enumerate(roles.blocks) if b.heads is None)
    apart += tuple(f"layers.{n}.{CHANNELS}" for n, b in enumerate(roles.blocks) if isinstance(b.second, Code))
    for call in made.calls:
        if f"{call.module}.".startswith(tuple(f"{path}." for path in apart)):
            continue
        size = torch.Size(made.shapes[call.outputs[0]]).numel()
        if call.function in CORES:
            queries = made.shapes[call.inputs[0]]
            right = queries[-2:] == (TOKENS, a.head_dim) and torch.Size(queries).numel() == rows * a.head_dim
        else:
            products = call.function in LINEAR and not call.params and len(call.inputs) > 1
            right = not products or size in (rows * TOKENS, rows * a.head_dim)
        if not right:
            yield call.line
