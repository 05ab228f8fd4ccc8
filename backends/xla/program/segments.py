"""Layers of which some multiply in the compute dtype what others quantize."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from planc.backends.xla.program.facts import FACTS
from planc.backends.xla.program.names import SEGMENTS, _pattern, remat
from planc.backends.xla.program.narrow import _multiplying_in_compute


def layers(block: Callable[..., Any], x: Any, stack: Any) -> Any:
    """x after `block(x, one layer's parameters)` for each layer of the stack."""

    for begin, end, names in _segments(stack) if FACTS.several_stacks else SEGMENTS:
        part = jax.tree.map(lambda w, begin=begin, end=end: w[begin:end], stack)
        x, _ = jax.lax.scan(remat(_layer(block, names), alone=end - begin == 1), x, part)
    return x


def _layer(block: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
    """A layer that multiplies by the named parameters in COMPUTE; a new function, as JAX caches traces."""

    def one(x: Any, layer: Any) -> tuple[Any, None]:
        with _multiplying_in_compute(names):
            # A layer waits for its x: otherwise weights outside loops are gathered before all microbatches.
            return block(*jax.lax.optimization_barrier((x, layer))), None

    return one


def _segments(stack: Any) -> tuple[tuple[int, int, tuple[str, ...]], ...]:
    """The segments of a stack of layers, by the parameters that they have."""
    paths = jax.tree_util.tree_leaves_with_path(stack)
    names = {_pattern(jax.tree_util.keystr(path, simple=True, separator=".")) for path, _ in paths}
    return next(found for name, found in SEGMENTS.items() if name in names)
