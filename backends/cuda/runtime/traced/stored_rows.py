"""Finds the order in which a fused layer stores its rows: follows indices through layout changes of its output."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from planc.backends.cuda.runtime.traced.flow import Flow, FlowNode
from planc.backends.cuda.runtime.traced.record import Numbered
from planc.backends.cuda.runtime.traced.roles import REARRANGING, UnknownError

SAME = ("to", "type_as", "float", "clone", "dropout", "detach", "type")


def numbers_of(flow: Flow, layer: FlowNode) -> dict[int, torch.Tensor]:
    """Returns index tensors, by the number of a value in `flow`: one for each value that only rearranges the output of
    `layer`. An element is the index of the weight's row that computes it.

    Only elements of the first token are row indices; elements of other tokens have indices beyond the last row.
    """
    made = flow.shape(layer.outputs[0])
    values = {layer.outputs[0]: torch.arange(math.prod(made)).view(made)}
    for node in flow.nodes[flow.nodes.index(layer) + 1 :]:
        known = [v for v in node.inputs if v in values]
        if known and node.kind in SAME:
            values[node.outputs[0]] = values[known[0]]
        elif known and node.kind in REARRANGING and node.call.again is not None:
            function, args, kwargs = node.call.again
            result = function(*_filled(args, values), **_filled(kwargs, values))
            parts = result if isinstance(result, tuple | list) else (result,)
            values |= dict(zip(node.outputs, parts, strict=True))
    return values


def _filled(value: Any, values: Mapping[int, torch.Tensor]) -> Any:
    if isinstance(value, Numbered):
        return values[value.number]
    if isinstance(value, dict):
        return {k: _filled(v, values) for k, v in value.items()}
    return type(value)(_filled(v, values) for v in value) if type(value) in (list, tuple) else value


def rows_of(flow: Flow, layer: FlowNode, target: int, count: int) -> tuple[int, ...]:
    """Returns the rows of the weight of `layer` that compute the value `target`, in the order of its heads; `count` is
    the number of these rows. Raises UnknownError."""
    assert layer.linear is not None
    values = numbers_of(flow, layer)
    before = made_from(flow, target)
    for value in reversed([v for v in values if v in before]):
        rows = of_first_token(values[value], layer.linear.made)
        if len(rows) == count:
            return rows
    raise UnknownError(f"{layer.call.line}: cannot tell which rows of {layer.linear.weight} make what")


def made_from(flow: Flow, target: int) -> set[int]:
    """Returns `target` and every value that `target` is computed from in `flow`."""
    found, open_values = set(), [target]
    while open_values:
        here = open_values.pop()
        if here not in found and (node := flow.maker.get(here)):
            open_values += node.inputs
        found.add(here)
    return found


def of_first_token(numbers: torch.Tensor, rows: int) -> tuple[int, ...]:
    """Returns those of `numbers` that are row indices (less than `rows`), each once, in order of occurrence."""
    return tuple(dict.fromkeys(n for n in numbers.flatten().tolist() if n < rows))
