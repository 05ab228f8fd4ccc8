"""Emits the `sync` of a serve plan: the trainer's weights, put in the layout in which a generator serves them."""

from __future__ import annotations

import ast

from planc.backends.common.source_writer import WIDTH, call, file_of
from planc.backends.common.specialise import specialise
from planc.backends.xla.analysis.layouts import Spec, param_spec
from planc.backends.xla.analysis.mesh_factors import atoms
from planc.backends.xla.analysis.padding import padded
from planc.backends.xla.analysis.pipeline import pipelined
from planc.backends.xla.analysis.stacked_params import StackedDims, stacks_of
from planc.backends.xla.analysis.state_dtypes import JAX_DTYPE
from planc.backends.xla.emit.specs import entry
from planc.backends.xla.program.facts import JaxFacts
from planc.diag.quoting import python_docstring, python_string
from planc.ir.sharding import ParamSharding, Sharded
from planc.sharding.transfers import narrows

IMPORTS = """
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
"""


CARRIED = (
    ("planc.sharding", "transfer_core", ("Run", "Box", "crossings")),
    ("planc.backends.common", "box_reader", ("open_checkpoint",)),
    ("planc.backends.xla.program", "stacked_boxes", ("Index", "ReadBox", "stacked_box")),
    ("planc.backends.xla.program", "sync", ("generator_mesh", "sync", "load")),
)
"""The definitions that the program carries: package, module, names."""


def emit_sync(trainer: Sharded, generator: Sharded, *, dtype: str, block: int = 0) -> str:
    """Return the source of the module with `sync(params, mesh)` for JAX.

    Args:
        trainer: the layouts of the training plan.
        generator: the layouts of the generator, a plan of the same model.
        dtype: how the generator holds weights: fp32, bf16, fp16, or float8 for those that `narrows` names.
        block: elements along each side of a block of float8 with one scale; 0: one scale for a matrix.
    """
    shapes = padded(generator)
    restacked = _restacked(trainer, generator)
    facts = JaxFacts(float8=dtype == "float8", block=block, restacks=bool(restacked), pads=bool(shapes))
    functions = [part for module in CARRIED for part in specialise(*module[:2], facts, module[2], WIDTH)]
    constants = [f for f in functions if isinstance(ast.parse(f).body[0], ast.Assign)]
    said = (
        f"The weights of {trainer.plan.file}, put in the layout that serves {generator.plan.name}.",
        "",
        "Compiled by planc; change the plans rather than this file. After a step:",
        "",
        '    weights = sync(state["params"], generator_mesh(devices))',
        "",
        "From a checkpoint of the training plan:",
        "",
        "    weights = load(checkpoint, generator_mesh(devices))",
    )
    head = '"""' + "\n".join(map(python_docstring, said)) + '\n"""'
    tables = "\n".join([*_tables(generator, dtype, block, shapes, restacked), *constants])
    return file_of([head, IMPORTS.strip(), tables], [f for f in functions if f not in constants])


Stack = tuple[tuple[int, ...], tuple[int, ...]]


def _restacked(trainer: Sharded, generator: Sharded) -> dict[str, Stack]:
    """Return, for each parameter whose stacks differ, the dims of the generator's stack, and for each layer in it the
    place in the trainer's (-1: padding)."""
    have, want = stacks_of(trainer.plan), stacks_of(generator.plan)
    return {name: (stack.dims, _places(have[name], stack)) for name, stack in want.items() if have[name] != stack}


def _places(have: StackedDims, want: StackedDims) -> tuple[int, ...]:
    place = {layer: at for at, layer in have.places}
    return tuple(-1 if layer is None else place[layer] for layer in want.layers)


def _tables(
    generator: Sharded, dtype: str, block: int, shapes: dict[str, tuple[int, ...]], restacked: dict[str, Stack]
) -> list[str]:
    model, plan = generator.model, generator.plan
    narrow = [p.param.name for p in generator.params if dtype == "float8" and narrows(p.param)]
    sizes = [f"{python_string(a.name)}: {a.size}" for a in atoms(plan)]
    wide = plan.precision.compute if dtype == "float8" else dtype
    found = [
        call("MESH = {", sizes),
        f"DTYPE = {JAX_DTYPE[wide]}",
        "SHAPES = {",
        *(f"    {python_string(p.param.name)}: {model.shape(p.param)!r}," for p in generator.params),
        "}",
        "SPECS = {",
    ]
    for p in generator.params:
        spec = param_spec(plan, p, "used")
        stack = stacks_of(plan).get(p.param.name)
        lead: Spec = ()
        if stack:
            over = (plan.split.axis,) if plan.split and pipelined(plan) else ()
            lead = (*(() for _ in stack.dims[1:]), over)
        found += entry(p.param.name, (*lead, *spec))
        if p.param.name in narrow:
            found += entry(f"{p.param.name}_scale_inv", (*lead, *_spec_of_scales(generator, p, spec, block)))
    found.append("}")
    stacks = [(name, (stack.dims, stack.layers)) for name, stack in stacks_of(plan).items()]
    found += ["LAYERS: dict[str, tuple[tuple[int, ...], tuple[int | None, ...]]] = {", *map(_row, stacks), "}"]
    for name, table in (("PADDED", shapes), ("STACKS", restacked)):
        rows = [f"    {python_string(key)}: {value!r}," for key, value in table.items()]
        found += [f"{name} = {{", *rows, "}"] if rows else []
    return [*found, *([call("NARROW = {", [python_string(name) for name in narrow])] if narrow else [])]


def _row(entry: tuple[str, tuple[tuple[int, ...], tuple[int | None, ...]]]) -> str:
    """Return the row of a stack, its layers as a range where they are one."""
    name, (dims, layers) = entry
    numbers = [n for n in layers if n is not None]
    first, last = numbers[0], numbers[-1] + 1
    if len(layers) > 2 and layers == tuple(range(first, last)):
        return f"    {python_string(name)}: ({dims!r}, (*range({f'{first}, ' if first else ''}{last}),)),"
    return f"    {python_string(name)}: ({dims!r}, {layers!r}),"


def _spec_of_scales(generator: Sharded, p: ParamSharding, spec: Spec, block: int) -> Spec:
    """Return the spec of a matrix's scales: that of the matrix where its parts are whole blocks, else whole."""
    sizes, shape = {a.name: a.size for a in atoms(generator.plan)}, generator.model.shape(p.param)
    found = []
    for dim, axes in enumerate(spec):
        parts = 1
        for axis in axes:
            parts *= sizes[axis]
        along = block if dim >= len(spec) - 2 else 1
        found.append(axes if along and shape[dim] % (parts * along) == 0 else ())
    return tuple(found)
