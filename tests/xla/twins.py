# ruff: noqa: E402
"""The bundled torch module and the JAX function with the same weights, in one process.

Prints one line of JSON: their parameters, and the largest differences of logits, loss and gradients.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from planc.backends.cuda.models import family as torch_family
from planc.backends.xla.runtime.start_up import prepare_environment

os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"  # halves what a compile takes
prepare_environment(1)

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as F

from planc.backends.cuda.models.balance import Balance
from planc.backends.cuda.models.moe import MoE
from planc.backends.xla.analysis.stacked_params import numbers, stacked
from planc.backends.xla.models import family
from planc.backends.xla.models.hooks import UNDIVIDED
from planc.catalog import build_model
from planc.trainer.run.initial_weights import initial, names


def gap(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


BALANCE = 0.3
"""Coefficient of the load-balancing loss, for models with experts: each stack adds its gradient in its own way."""


def balance(module: torch.nn.Module, experts: int, sequences: int) -> None:
    for part in module.modules():
        if isinstance(part, MoE):
            part.balance = Balance(BALANCE / sequences, torch.zeros(experts, dtype=torch.int64))


def compare(name: str) -> dict[str, Any]:
    """The differences between a model's two modules."""
    model, draw = build_model(name), initial(build_model(name), 3)
    values = {n: draw(n, shape) + (0.1 if "norm" in n else 0.0) for n, shape in names(model)}
    stream = np.random.default_rng(0)
    tokens = stream.integers(0, model.sizes["vocab"], (2, 33), dtype=np.int64)

    module = torch_family(model.family).build(model)
    twin = family(model.family)
    expected_shapes = {n: list(p.shape) for n, p in module.named_parameters()}
    with torch.no_grad():
        for n, p in module.named_parameters():
            p.copy_(torch.from_numpy(values[n]))
    balance(module, model.sizes.get("experts", 0), len(tokens))
    logits = module(torch.from_numpy(tokens[:, :-1]))
    loss = F.cross_entropy(logits.flatten(0, 1), torch.from_numpy(tokens[:, 1:]).flatten())
    loss.backward()
    expected = {n: p.grad.numpy() for n, p in module.named_parameters() if p.grad is not None}

    params = {
        p.name: jnp.stack([values[p.name.replace("*", str(i))] for i in numbers(model, p)])
        if stacked(model, p)
        else jnp.asarray(values[p.name])
        for p in model.params
    }
    assert {n: p.shape for n, p in params.items()} == twin.shapes(model)
    mine = jax.jit(twin.build_logits(model, UNDIVIDED))(params, tokens[:, :-1])
    told = twin.build_loss(model, UNDIVIDED, BALANCE) if model.top_k else twin.build_loss(model, UNDIVIDED)
    (found_loss, picks), grads = jax.jit(
        jax.value_and_grad(told if model.top_k else lambda *a: (told(*a), None), has_aux=True)
    )(params, tokens[:, :-1], tokens[:, 1:])
    routers = [part for part in module.modules() if isinstance(part, MoE)]
    found = {
        n.replace("*", str(i)): layer
        for n, g in grads.items()
        for i, layer in (zip(numbers(model, model.param[n]), np.asarray(g), strict=True) if "*" in n else [(0, g)])
    }
    return {
        "name": name,
        "missing": sorted(set(found) ^ set(expected)),
        "shapes": all(list(found[n].shape) == shape for n, shape in expected_shapes.items()),
        "logits": gap(np.asarray(mine), logits.detach().numpy()),
        "loss": abs(float(found_loss) - loss.item()) / loss.item(),
        "gradients": max(gap(np.asarray(found[n]), g) for n, g in expected.items()),
        "picks": [r.balance.picked.tolist() for r in routers] == (picks.sum(1).tolist() if model.top_k else []),
        "dead": [n for n, g in expected.items() if not np.abs(g).max()],
    }


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    for name in names:
        print("ROW", json.dumps(compare(name)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
