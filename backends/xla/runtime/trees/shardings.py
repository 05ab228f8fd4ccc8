"""Implements `program.shardings(tree)`: the sharding of each leaf of a user's pytree, and diagnostics about the tree or
its rules."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from planc.backends.xla.analysis.layouts import Spec, param_spec
from planc.backends.xla.analysis.pipeline import pipelined
from planc.backends.xla.runtime.trees.layout import (
    Factors,
    Shape,
    Specs,
    layer_counts,
    size_of,
    specs_by_shape,
    specs_of,
    written,
)
from planc.backends.xla.runtime.trees.rules import LAYERS, Groups, LeafRule, named_dims, read_rules
from planc.diag import Diagnostic, PlanError, Span
from planc.diag.diagnostic import Related, bounded, in_order
from planc.diag.quoting import printable
from planc.files import leads_out
from planc.picture.units import count

if TYPE_CHECKING:
    from planc.ir.model import Model
    from planc.ir.plan import Noun
    from planc.ir.program_text import ProgramText

MOST_SHOWN = 8
"""Number of leaves that a message lists; the others are counted."""
NEAR = 0.01
"""Share of a model's parameters that norms and biases may make."""
TABLES: dict[Noun, str] = {"params": "PARAMS", "grads": "GRADS", "optimizer": "OPTIMIZER"}
"""Names of the tables of an emitted program."""


def shardings(
    program: ProgramText,
    tree: Any,
    rules: Mapping[str, str] | str | Path | None,
    model: Callable[[Any, jax.Array], Any] | None,
    noun: Noun,
) -> Any:
    """Return a NamedSharding for every leaf of `tree`, on the mesh of `program`; see
    `planc.ir.program.Program.shardings`.

    `rules` may be None; `model` is called with abstract arrays; `noun` is the kind of state in the tree. Raises
    PlanError if a leaf has no layout (E1206), if a rule is wrong (E1221 to E1225), and if a leaf in a pipeline does not
    have planc's name (E0901).
    """
    specs = leaf_specs(program, tree, rules, model, noun)
    if noun == "params" and (other := other_size(program.plan.model, tree)):
        warnings.warn(other, stacklevel=4)
    emitted = program.load()
    sizes = program.plan.mesh.sizes
    few = jax.device_count() < program.plan.mesh.devices
    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes)) if few else emitted.build_mesh()
    if specs is None:
        return emitted.shardings(mesh, tree, getattr(emitted, TABLES[noun]))
    jax_spec: Any = PartitionSpec
    where = [NamedSharding(mesh, jax_spec(*(axes or None for axes in spec))) for spec in specs]
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(tree), where)


def other_size(model: Model, tree: Any) -> str:
    """Return a warning if `tree` has another number of parameters than `model`, by more than norms and biases make;
    else "". The warning says how many layers would explain it."""
    own = sum(prod(leaf.shape) for leaf in jax.tree_util.tree_leaves(tree) if hasattr(leaf, "shape"))
    if abs(own - model.parameters) <= NEAR * model.parameters:
        return ""
    inside = [p for p in model.params if {*p.sections} <= {*model.blocks}]
    blocks = sum(model.elements(p) * model.copies(p) for p in inside)
    found = f"the tree has {count(own)} parameters and {model.name}, the plan's model, {count(model.parameters)}"
    deep = (own - model.parameters + blocks) / (blocks / model.layers)
    whole = round(deep) not in (0, model.layers) and abs(deep - round(deep)) < NEAR * deep
    likely = f", as of {round(deep)} layers in place of {model.layers}" if whole else ""
    return f"{found}{likely}: layouts are those of the plan, but memory and time are of its model"


def leaf_specs(
    program: ProgramText,
    tree: Any,
    rules: Mapping[str, str] | str | Path | None,
    model: Callable[[Any, jax.Array], Any] | None,
    noun: Noun,
) -> list[Spec] | None:
    """Return the layout of each leaf of `tree`. None if every leaf has planc's own name: the emitted program lays out
    such a tree.

    Arguments and errors are those of `shardings`. No devices are needed.
    """
    if rules is not None and rules == program.rules and leads_out(program.rules):
        message = f"{printable(str(rules))} is a link to a file outside the plan's folder"
        raise PlanError([Diagnostic("E1221", message, Span(str(rules), 1, 1, 1, 1))])
    found = _Found(program, noun, read_rules(rules, program.plan.model) if rules is not None else ())
    paths = jax.tree_util.tree_leaves_with_path(tree)
    factors: list[Factors | None] = [None] * len(paths)
    if model is not None:
        from planc.backends.xla.runtime.trees.traced import factors_of_leaves

        factors = factors_of_leaves(model, tree, program.plan)
    specs = [found.spec(_path(path), leaf, known) for (path, leaf), known in zip(paths, factors, strict=True)]
    found.finish()
    if found.all_own:
        return None
    if pipelined(program.plan):
        assert program.plan.split is not None
        message = "stages of a pipeline are cut where the program's `layers` runs, by planc's names of parameters"
        advice = "rename the leaves to planc's names, stacked, and call `layers` on the block"
        raise PlanError([Diagnostic("E0901", message, program.plan.split.cause.span, help=advice)])
    return specs


@dataclass
class _Found:
    """Finds the layouts of a tree's leaves one by one, and collects diagnostics."""

    program: ProgramText
    noun: Noun
    rules: tuple[LeafRule, ...]
    all_own: bool = True
    """True while every leaf has planc's own name, and no rule."""
    paths: list[str] = field(default_factory=list)
    used: set[LeafRule] = field(default_factory=set)
    without: list[str] = field(default_factory=list)
    """Leaves without a layout, each with the reason."""
    wrong: list[Diagnostic] = field(default_factory=list)

    def spec(self, path: str, leaf: Any, factors: Factors | None) -> Spec:
        """Return the layout of the `leaf` at `path`; () for a scalar, and if a diagnostic was recorded. `factors` are
        the factors of the leaf's dims if the user's function was traced, else None."""
        self.paths.append(path)
        if not hasattr(leaf, "shape"):
            self.without.append(f"{printable(path) or 'the tree itself'} is no array")
            return ()
        shape, name = tuple(leaf.shape), own_name(path)
        if hits := [rule for rule in self.rules if rule.matches(path)]:
            self.all_own = False
            return self._by_rules(path, shape, hits)
        if name in self.program.plan.model.param:
            return self._by_name(path, shape, name)
        self.all_own = False
        if not shape:
            return ()
        found = specs_by_shape(self.program.sharded, self.noun, shape, factors) if factors else {}
        found = found or specs_by_shape(self.program.sharded, self.noun, shape)
        if len(found) == 1:
            return next(iter(found))
        self.without.append(self._no_layout(path, shape, found))
        return ()

    def _by_name(self, path: str, shape: Shape, name: str) -> Spec:
        plan = self.program.plan
        expected = plan.model.shape(plan.model.param[name])
        if shape[-len(expected) :] != expected:
            self.without.append(f"{path}: {_shape(shape)} found, {_shape(expected)} expected")
            return ()
        spec = param_spec(plan, self.program.sharded.param[name], self.noun)
        return (*[()] * (len(shape) - len(spec)), *spec)

    def _by_rules(self, path: str, shape: Shape, hits: list[LeafRule]) -> Spec:
        """Return the layout of a leaf by its rules `hits`; () with a diagnostic if the rules disagree or do not fit."""
        self.used |= set(hits)
        first, *others = hits
        for other in others:
            if (other.groups, other.parameter) != (first.groups, first.parameter):
                dims = f"{written(first.groups)}; {written(other.groups)}"
                message = f"two rules give different dims to {printable(path)}: {dims}"
                related = (Related(first.span, "the other rule"),)
                self.wrong.append(Diagnostic("E1225", message, other.span, related=related))
                return ()
        if why := self._unfit(shape, first.groups):
            message = f"{printable(path)}: {_shape(shape)} found, and {written(first.groups)} {why}"
            self.wrong.append(Diagnostic("E1224", message, first.span))
            return ()
        found = specs_of(self.program.sharded, self.noun, shape, first.groups, first.parameter)
        if len(found) == 1:
            return next(iter(found))
        dims = written(first.groups)
        message = f"the plan shards parameters with the dims {dims} in {len(found)} ways, {printable(path)} in one"
        advice = f"say which: `{dims} as {next(iter(found.values()))[0] if found else 'NAME'}`"
        self.wrong.append(Diagnostic("E1224", message, first.span, help=advice))
        return ()

    def _unfit(self, shape: Shape, groups: Groups) -> str:
        """Return the reason why a leaf of `shape` cannot have the named dims `groups`; "" if it can."""
        model = self.program.plan.model
        if len(groups) != len(shape):
            return f"are {len(groups)} dimensions, not {len(shape)}"
        if repeated := [d for d in named_dims(model) if sum(group.count(d) for group in groups) > 1]:
            return f"have {repeated[0]} twice"
        for n, group in zip(shape, groups, strict=True):
            if LAYERS in group and (len(group) > 1 or n not in layer_counts(model)):
                return f"have {model.layers} layers"
            if group and LAYERS not in group and n != size_of(model, group):
                return f"have {' * '.join(group)} {size_of(model, group)}, not {n}"
        return ""

    def _no_layout(self, path: str, shape: Shape, found: Specs) -> str:
        """Return the message about a leaf whose shape fits no parameter of the plan, or several (`found`)."""
        model, shown = self.program.plan.model, printable(path) or "the tree itself"
        if found:
            dims = " or ".join(f"`{each[0]}`" for each in list(found.values())[:3])
            return f"{shown} ({_shape(shape)}) may be {dims} by its shape"
        near = get_close_matches(own_name(path), model.param, n=2, cutoff=0.0)
        return f"{shown} has no rule (the nearest names: {', '.join(near)})"

    def finish(self) -> None:
        """Raise PlanError if a leaf has no layout, or if a rule is wrong or matches no leaf."""
        plan, model = self.program.plan, self.program.plan.model
        for rule in (r for r in self.rules if r not in self.used):
            near = get_close_matches(rule.pattern, self.paths, n=2, cutoff=0.0)
            advice = f"the nearest paths: {', '.join(map(printable, near))}" if near else ""
            message = f'no leaf of the tree has a path like "{printable(rule.pattern)}"'
            self.wrong.append(Diagnostic("E1223", message, rule.span, help=advice))
        if self.without:
            shown = "; ".join(self.without[:MOST_SHOWN])
            more = f"; and {len(self.without) - MOST_SHOWN} more" if len(self.without) > MOST_SHOWN else ""
            message = f"the tree is not of {model.name}, the plan's model: {shown}{more}"
            dims = ", ".join(d if d == LAYERS else f"{d} {model.sizes[d]}" for d in named_dims(model))
            advice = 'name their dims, `"*/mlp/wi/kernel" = embed, ffn`, or give the function as `model`. '
            advice += f"The model's dims are {dims}; "
            advice += f"the names of its parameters are {', '.join(model.param)}"
            span = (model.cause or plan.mesh.cause).span
            self.wrong.append(Diagnostic("E1206", message, span, help=advice))
        if self.wrong:
            raise PlanError(bounded(in_order(self.wrong)))


def _path(entries: Any) -> str:
    """Return a leaf's path: its keys and fields joined by slashes, without the `value` of a Flax box."""
    names = list(_names(entries))
    return "/".join(names[:-1] if len(names) > 1 and names[-1] == "value" else names)


def _names(entries: Any) -> Iterator[str]:
    for entry in entries:
        yield jax.tree_util.keystr((entry,), simple=True)


def own_name(path: str) -> str:
    """Return the `path` of a leaf in the form of planc's parameter names: dots, and `*` for the number of a layer.

    >>> own_name("layers/3/norm/weight"), own_name("layers.norm.weight"), own_name("head/kernel")
    ('layers.*.norm.weight', 'layers.*.norm.weight', 'head.kernel')
    """
    return re.sub(r"^layers\.((\d+|\*)\.)?", "layers.*.", path.replace("/", "."))


def _shape(shape: Shape) -> str:
    return " x ".join(map(str, shape)) or "a single number"
