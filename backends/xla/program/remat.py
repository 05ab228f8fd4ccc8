"""The loop over layers: each is recomputed in the backward, or only the first of each group."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

from planc.backends.xla.program.facts import FACTS
from planc.backends.xla.program.names import GROUPS, SAVED_BETWEEN, _pattern, remat


def layers(block: Callable[[jax.Array, Any], jax.Array], x: jax.Array, stack: Any) -> jax.Array:
    """x after `block(x, one layer's parameters)` for each layer of the stack."""
    if FACTS.recomputes_groups:
        return _in_groups(block, x, stack)
    body = remat(lambda x, layer: (block(checkpoint_name(x, FACTS.hidden) if FACTS.offloads_input else x, layer), None))
    return jax.lax.scan(body, x, stack)[0]


def _in_groups(block: Callable[[jax.Array, Any], jax.Array], x: jax.Array, stack: Any) -> jax.Array:
    """x after the layers of the stack, in the groups of GROUPS."""

    def one(x: jax.Array, layer: Any) -> tuple[jax.Array, None]:
        # A layer waits for its x: otherwise weights outside loops are gathered before all microbatches.
        return block(*jax.lax.optimization_barrier((x, layer))), None

    for begin, groups, size, names in _groups(stack) if FACTS.several_stacks else GROUPS:
        first, between = (_checkpointing(each, one, alone=groups == 1) for each in (names, SAVED_BETWEEN))
        x, _ = jax.lax.scan(functools.partial(_group, first, between), x, _grouped(stack, begin, groups, size))
    return x


def _group(first: Callable[..., Any], between: Callable[..., Any], x: jax.Array, stack: Any) -> tuple[jax.Array, None]:
    x, _ = first(x, jax.tree.map(lambda w: w[0], stack))
    return jax.lax.scan(between, x, jax.tree.map(lambda w: w[1:], stack))


def _grouped(stack: Any, begin: int, groups: int, size: int) -> Any:
    """Parameters of some groups of layers, [groups, size, ...]."""
    end = begin + groups * size
    return jax.tree.map(lambda w: w[begin:end].reshape(groups, size, *w.shape[1:]), stack)


def _checkpointing(names: tuple[str, ...], block: Callable[..., Any], alone: bool = False) -> Callable[..., Any]:
    """The block with rematerialization: it saves the named activations and recomputes the rest."""
    policy = jax.checkpoint_policies.save_only_these_names(*names)
    return jax.checkpoint(block, policy=policy, prevent_cse=alone)  # not needed inside a scan


def _groups(stack: Any) -> tuple[tuple[int, int, int, tuple[str, ...]], ...]:
    """The groups of a stack of layers, by the parameters that they have."""
    paths = jax.tree_util.tree_leaves_with_path(stack)
    names = {_pattern(jax.tree_util.keystr(path, simple=True, separator=".")) for path, _ in paths}
    return next(groups for name, groups in GROUPS.items() if name in names)
