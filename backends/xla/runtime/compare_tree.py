"""A user's pytree of parameters beside the plan's model: every leaf needs a parameter of its name and shape."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import jax

from planc.diag import Diagnostic, PlanError

if TYPE_CHECKING:
    from planc.ir.model import Model
    from planc.ir.program import Program

MOST_SHOWN = 8
"""As many leaves are listed; of the others their number is."""


def check_tree(tree: Any, program: Program) -> None:
    """Raise PlanError (E1206) with every leaf that is no parameter of the model of the program's plan."""
    model = program.plan.model
    if wrong := list(_wrong_leaves(tree, model)):
        shown = "; ".join(wrong[:MOST_SHOWN])
        more = f"; and {len(wrong) - MOST_SHOWN} more" if len(wrong) > MOST_SHOWN else ""
        message = f"the tree is not of {model.name}, the plan's model: {shown}{more}"
        advice = f"the names of its parameters are {', '.join(model.param)}"
        raise PlanError([Diagnostic("E1206", message, (model.cause or program.plan.mesh.cause).span, help=advice)])


def _wrong_leaves(tree: Any, model: Model) -> Iterator[str]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        pattern = re.sub(r"^layers\.((\d+|\*)\.)?", "layers.*.", name)
        if pattern not in model.param:
            near = get_close_matches(pattern, model.param, n=2, cutoff=0.0)
            yield f"{name or 'the tree itself'} has no rule (the nearest names: {', '.join(near)})"
            continue
        shape, expected = tuple(leaf.shape), model.shape(model.param[pattern])
        if shape[-len(expected) :] != expected:
            yield f"{name}: {_shape(shape)} found, {_shape(expected)} expected"


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "a single number"
