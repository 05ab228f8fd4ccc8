"""A share of the heads: tried on the meta device, before any process group is there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import torch
from torch import nn

from planc.backends.cuda.runtime.traced.bind import Bound
from planc.backends.cuda.runtime.traced.bind_block import common_path, localise
from planc.backends.cuda.runtime.traced.read import SEQUENCES, TOKENS, roles_of_module
from planc.backends.cuda.runtime.traced.record import Record, record
from planc.backends.cuda.runtime.traced.roles import CORES, LINEAR, Attention, Roles
from planc.backends.cuda.runtime.traced.shell import place, without_weights

MOST_UNSURE = 3
"""As many attributes at a time are tried as widths."""


def on_a_share(model: nn.Module, roles: Roles, share: int) -> tuple[Roles, str]:
    """`roles` for one of `share` parts of the heads, and why the attention takes none, in words; "" where it does.

    Attributes that have the value of a number of heads and of a head's width too are tried as either.
    """
    why = refusal(model, roles, share)
    a = roles.blocks[0].attention
    holder = model.get_submodule(f"{roles.layers}.0").get_submodule(common_path([a.q.place, a.out.place]))
    both = [n for n, v in vars(holder).items() if type(v) is int and v == a.head_dim]
    for number in range(1, min(len(both), MOST_UNSURE) + 1) if why else ():
        for names in combinations(both, number):
            blocks = (replace(b, attention=replace(b.attention, whole=names)) for b in roles.blocks)
            tried = replace(roles, blocks=tuple(blocks))
            if not refusal(model, tried, share):
                return tried, ""
    return roles, why


def refusal(model: nn.Module, roles: Roles, share: int) -> str:
    """Why the attention of `model` does not take one of `share` parts of its heads, in words; "" where it does."""
    bound = Bound(without_weights(model).eval(), roles, TOKENS)
    for block, role in zip(bound.layers.values(), roles.blocks, strict=True):
        _narrow(block.get_submodule("attention"), role.attention, share)
        _gather_norms(block.get_submodule("attention"), role.attention, share)
    tokens = torch.zeros(SEQUENCES, TOKENS, dtype=torch.long, device="meta")
    try:
        made = record(bound, bound, tokens)
    except Exception as error:  # the model's own code, with shapes that it may not expect
        return f"{place(error)}: its attention takes no share of the heads: {str(error).splitlines()[0][:200]}"
    wrong = next(_wrong(made, roles.blocks[0].attention, share), None)
    if wrong is None and roles.blocks[0].attention.rows and not _same_order(model, roles, share):
        wrong = roles.blocks[0].attention.q.weight
    return f"{wrong}: its attention takes no share of the heads" if wrong is not None else ""


def _same_order(model: nn.Module, roles: Roles, share: int) -> bool:
    """True where the rows of a layer that makes queries, keys and values lie in a share as they lie in the whole."""
    own = without_weights(model).eval()
    for number, role in enumerate(roles.blocks):
        a = role.attention
        block = own.get_submodule(f"{roles.layers}.{number}")
        for layer, width, dim in ((a.q, a.q.made // share, 0), (a.out, a.out.taken // share, 1)):
            module: Any = block.get_submodule(layer.path)
            weight, bias = (n.rpartition(".")[2] for n in (layer.weight, layer.bias))
            shape = [layer.made, layer.taken]
            shape[dim] = width
            stored = shape[::-1] if layer.transposed else shape
            setattr(module, weight, nn.Parameter(torch.empty(stored, device="meta")))
            if layer.bias and dim == 0:
                setattr(module, bias, nn.Parameter(torch.empty(width, device="meta")))
            if hasattr(module, "nf") and dim == 0:  # a layer that shapes its output by an attribute
                module.nf = width
        path = common_path([a.q.place, a.out.place])
        localise(block.get_submodule(path), a, share)
    found = roles_of_module(own).blocks[0].attention.rows
    rows = roles.blocks[0].attention.rows
    first = torch.tensor([row for own_rows in rows for row in own_rows[: len(own_rows) // share]])
    places = first.argsort().argsort().tolist()
    return [row for own_rows in found for row in own_rows] == places


def _narrow(attention: nn.Module, a: Attention, share: int) -> None:
    """Give the linear layers of `attention` the widths that they have on one of `share` ranks."""
    for name in ("wq", "wk", "wv", "wo"):
        whole: Any = attention.get_submodule(name)
        taken, made = whole.in_features, whole.out_features
        taken, made = (taken // share, made) if name == "wo" else (taken, made // share)
        whole.weight = nn.Parameter(torch.empty(made, taken, device="meta"))
        if whole.bias is not None:
            whole.bias = nn.Parameter(torch.empty(made, device="meta"))


def _gather_norms(attention: nn.Module, a: Attention, share: int) -> None:
    """Norms over all heads together take those of all ranks, and leave this rank's, as a program has them do."""
    for name, norm, heads in (("q_norm", a.q_norm, a.heads), ("k_norm", a.k_norm, a.kv_heads)):
        if norm is not None and norm.over_all(heads, a.head_dim):
            module = attention.get_submodule(name)
            module.register_forward_pre_hook(lambda _, given: (torch.cat([given[0]] * share, dim=-1), *given[1:]))
            module.register_forward_hook(lambda _, given, made: made[..., : made.shape[-1] // share])


def _wrong(made: Record, a: Attention, share: int) -> Iterator[str]:
    """Lines at which queries or scores are not those of a share of the heads over all tokens."""
    rows = SEQUENCES * a.heads // share * TOKENS
    for call in made.calls:
        size = torch.Size(made.shapes[call.outputs[0]]).numel()
        if call.function in CORES:
            queries = made.shapes[call.inputs[0]]
            right = queries[-2:] == (TOKENS, a.head_dim) and torch.Size(queries).numel() == rows * a.head_dim
        else:
            products = call.function in LINEAR and not call.params and len(call.inputs) > 1
            right = not products or size in (rows * TOKENS, rows * a.head_dim)
        if not right:
            yield call.line
