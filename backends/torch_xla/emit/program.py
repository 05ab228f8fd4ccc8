"""Emits the program of a plan as torch on XLA, as text; imports no framework."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from planc.backends.common.source_writer import INDENT, WIDTH, beside, call, causes, comment, file_of, fill
from planc.backends.common.specialise import specialise
from planc.backends.torch_xla.emit.experts import experts_constants, has_experts
from planc.backends.torch_xla.program.facts import TorchXlaFacts
from planc.backends.torch_xla.versions import TORCH_XLA
from planc.backends.xla.analysis.layouts import Spec, activation_spec, spec_of
from planc.backends.xla.emit.program import NO_PLAN
from planc.backends.xla.emit.specs import entry, spec_text
from planc.backends.xla.emit.tables import constants, not_decayed, param_tables
from planc.diag.quoting import python_docstring, python_string
from planc.ir.base import plain_name
from planc.ir.model import Op
from planc.ir.sharding import Sharded
from planc.ir.version import Version, dotted

RETURNED = ("embedding", "norm", "matmul", "attention", "add")
"""Kinds of ops whose output is the output of their module."""


def emit(sharded: Sharded, version: Version = TORCH_XLA.pinned) -> str:
    """Returns the source of the program of `sharded` for a `version` of torch_xla; equal plans give equal bytes."""
    replays, taken, routed = sharded.plan.recompute.blocks, inputs(sharded), has_experts(sharded)
    limited = routed and sharded.plan.route.method == "capacity"
    tables = [
        [line.replace("jnp.", "torch.") for line in constants(sharded)] + replayed_every(sharded),
        param_tables(sharded),
        not_decayed(sharded),
        outputs_table(sharded),
        *([inputs_table(taken)] if taken else []),
        *([experts_constants(sharded)] if routed else []),
    ]
    guard = TORCH_XLA.guard(sharded, version)
    facts = TorchXlaFacts(takes_inputs=bool(taken), experts=routed, capacity=limited, replays=replays)
    spec, *functions = specialise("planc.backends.torch_xla.program", "step", facts, ENTRIES, WIDTH)
    head = [
        _docstring(sharded, version),
        fill(
            IMPORTS,
            copy="import copy" if replays else "",
            math="import math" if limited else "",
            silu="from torch.nn.functional import silu" if routed else "",
            barrier="import torch_xla.core.xla_model as xm" if replays else "",
        ),
        guard + "\n",
        spec + "\n",
        *("\n".join(lines) for lines in tables),
    ]
    return file_of(head, [NO_PLAN, *functions])


ENTRIES = ("P", "build_mesh", "parallelize", "build_step", "build_evaluate")
"""Functions that a user calls, and `P` for the tables."""

DOCSTRING = '''
"""Plan <name>: the layout and training step of <model> in torch on XLA.

Mesh     <mesh>
Batch    <batch>

    mesh = build_mesh()
    model = parallelize(model, mesh)
    optimizer = AdamW(model, mesh)
    step = build_step(model, optimizer, mesh)
    loss, norm = step(tokens, targets, lr)

One process drives all devices of its host. `model` is a plain module with the names of the tables below and
its parameters on the XLA device. Set XLA_NO_SPECIAL_SCALARS=1 before torch_xla is imported: else a learning
rate of 0 or 1 is another program. Written by planc for torch_xla <version>
from <file>: edit the plan, not this file.
"""
'''

IMPORTS = """
from __future__ import annotations

<copy>
<math>
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch_xla
import torch_xla.backends
<barrier>
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch import Tensor, nn
from torch.func import functional_call
<silu>
"""


def replayed_every(sharded: Sharded) -> list[str]:
    """Returns the line `REPLAYED_EVERY = N` if every Nth block of `sharded` is recomputed; [] without recomputation."""
    recompute = sharded.plan.recompute
    said = recompute.cause.comment() if recompute.cause else ""
    return beside(f"REPLAYED_EVERY = {recompute.every}", said) if recompute.blocks else []


def inputs_table(taken: dict[str, tuple[Spec, ...]]) -> list[str]:
    """Returns the lines of `INPUTS`, the shardings of module inputs by module name. `taken` is what `inputs`
    returned."""
    rows = (call(f"{python_string(name)}: (", [spec_text(s) for s in specs], ",", 1) for name, specs in taken.items())
    head = comment("Shardings of attention's inputs: queries, keys, values.")
    return [*head, "INPUTS = {", *(INDENT + row.replace("\n", "\n" + INDENT) for row in rows), "}"]


def inputs(sharded: Sharded) -> dict[str, tuple[Spec, ...]]:
    """Returns the specs of the inputs of the attention modules of `sharded` whose inputs are redistributed: keys and
    values are gathered over the ranks that shard a sequence."""
    plan, model = sharded.plan, sharded.model
    found: dict[str, tuple[Spec, ...]] = {}
    for o in chain.from_iterable(sharded.ops.values()):
        if o.op.kind == "attention" and any(o.redistributions):
            dims = ((name, model.tensor[name].dims) for name in o.op.inputs)
            found[o.op.module] = tuple(spec_of(plan, d, o.needs(name, d)) for name, d in dims)
    return found


def outputs_table(sharded: Sharded) -> list[str]:
    """Returns the lines of `OUTPUTS`, the shardings of module outputs in `sharded`, by module name."""
    rows = chain.from_iterable(entry(name, spec) for name, spec in outputs(sharded).items())
    head = comment("Shardings of module outputs and of their gradients.")
    return [*head, *causes(s.cause for s in sharded.plan.shards), "OUTPUTS = {", *rows, "}"]


def outputs(sharded: Sharded) -> dict[str, Spec]:
    """Returns the spec of each module's output in `sharded`: for a module of several ops, that of the last op."""
    found: dict[str, Spec] = {}
    for op in _ops(sharded):
        if op.kind in RETURNED and op.region != "experts":
            found[op.module] = _linear_output_spec(op, activation_spec(sharded, op.output))
    return found


def _linear_output_spec(op: Op, spec: Spec) -> Spec:
    """Returns the spec of the output of the module of `op`. A linear module merges the dims of heads: [B, S, H * E]."""
    if op.kind != "matmul" or len(spec) <= 3:
        return spec
    return (*spec[:2], tuple(axis for axes in spec[2:] for axis in axes))


def _ops(sharded: Sharded) -> Iterator[Op]:
    for section in sharded.model.ops.values():
        yield from section


def _docstring(sharded: Sharded, version: Version) -> str:
    plan = sharded.plan
    axes = " x ".join(f"{a.name} {a.size}" for a in plan.mesh.axes)
    return fill(
        DOCSTRING,
        name=python_docstring(plan.name),
        model=python_docstring(plan.model.name),
        mesh=f"{python_docstring(axes)} = {plan.mesh.devices} devices, outermost first",
        batch=python_docstring(" ".join(plan.batch.cause.sentence.split()[1:])),
        version=dotted(version),
        file=plain_name(plan.file),
    )
