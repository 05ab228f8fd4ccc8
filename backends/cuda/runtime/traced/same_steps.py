"""Checks for bugs of planc: a module renamed to the op graph's names must run the same ops as before."""

from __future__ import annotations

from collections import Counter

import torch
from torch import nn

from planc.backends.cuda.runtime.traced.bind import BoundModel, logits_of
from planc.backends.cuda.runtime.traced.loops import with_blocks
from planc.backends.cuda.runtime.traced.record import ForwardRecord, record
from planc.backends.cuda.runtime.traced.roles import (
    CORES,
    LINEAR,
    REARRANGING,
    BlockLayers,
    DecoderRoles,
    ExpertLayers,
    FeedForwardLayers,
)
from planc.backends.cuda.runtime.traced.shell import without_weights

SEQUENCES, TOKENS = 2, 24
NO_STEPS = (
    *("cat", "clone", "write", "to", "type", "float", "bfloat16", "half", "type_as", "detach", "empty_like"),
    "new_empty",
)
"""Functions, besides layout changes, that are not compared: they concatenate split layers, copy or cast."""


def other_steps(model: nn.Module, roles: DecoderRoles) -> str:
    """Returns a text with the ops that `model` runs more or less often with its parts renamed as `roles`; "" for none.

    The model's code runs twice on the meta device, unchanged and renamed. Split layers count as several; experts are
    not run. The number of parameter elements is compared too.
    """
    tokens = torch.zeros(SEQUENCES, TOKENS, dtype=torch.long, device="meta")
    shell = with_blocks(without_weights(model).eval(), roles.loop)
    more = {"use_cache": False} if hasattr(model, "config") else {}
    before = _steps(record(shell, lambda t: logits_of(shell(t, **more)), tokens, skips=True), roles)
    bound = BoundModel(without_weights(model).eval(), roles, TOKENS)
    after = _steps(record(bound, bound, tokens, skips=True), roles)
    before["numbers in parameters"], after["numbers in parameters"] = _numbers(shell), _numbers(bound)
    before["products"] += sum(map(_products_more, roles.blocks))
    changed = {name: (before[name], after[name]) for name in {*before, *after} if before[name] != after[name]}
    return ", ".join(f"{was} of {name} became {now}" for name, (was, now) in sorted(changed.items()))


def _numbers(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _products_more(block: BlockLayers) -> int:
    """Returns the number of matmuls that a block gains because its fused layers are split."""
    a, second = block.heads, block.second.shared if isinstance(block.second, ExpertLayers) else block.second
    more = int(isinstance(second, FeedForwardLayers) and len(second.rows) > 0)
    if a is not None:  # of latents: keys and values, and the latent and the rotated key
        more += max(0, len(a.rows) - 1) + (2 if a.latent else 0)
    return more


def _steps(made: ForwardRecord, roles: DecoderRoles) -> Counter[str]:
    """Returns the number of recorded calls by function. If the model has experts, whose dispatch is replaced, only
    matmuls and attention cores are counted."""
    routed = any(isinstance(b.second, ExpertLayers) for b in roles.blocks)
    counted: Counter[str] = Counter()
    for call in made.calls:
        if call.function in LINEAR:
            counted["products"] += 1
        elif call.function in CORES:
            counted["cores of attention"] += 1
        elif not routed and call.function not in (*REARRANGING, *NO_STEPS):
            counted[call.function] += 1
    return counted
