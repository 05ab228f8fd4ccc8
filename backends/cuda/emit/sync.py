"""Emits the `sync` of a serve plan: the trainer's weights, sent to the ranks of the generator in its layout."""

from __future__ import annotations

import ast

from planc.backends.common.source_writer import call, file_of, lines
from planc.backends.common.specialise import specialise
from planc.backends.cuda.analysis.fsdp_shard_dim import state_layout
from planc.backends.cuda.emit.parallelize import TORCH_DTYPES
from planc.backends.cuda.program.facts import TorchFacts
from planc.backends.cuda.runtime.hf_adapter import engine_names
from planc.diag.quoting import python_docstring, python_string
from planc.ir.plan import Plan
from planc.ir.sharding import Sharded
from planc.sharding.transfers import TensorMove, narrows, sides_of, tensor_transfers

WIDTH = 120
CORE = (
    *("Run", "MeshAxis", "Box", "TensorLayout", "RankRange", "TensorTransfer", "Hop"),
    *("cells", "hops", "runs_of", "shape_of", "rotation_of"),
)
"""The definitions of `transfer_core` that the program carries as they stand."""

IMPORTS = """
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
"""


ENGINE = (
    "",
    "vLLM and SGLang call these weights other names, and hold some together. They are filled in place, or loaded:",
    "",
    "    weights = engine_views(dict(engine_model.named_parameters()), rank)",
    "    engine_model.load_weights(checkpoint_names(weights, rank))",
)
"""Lines of a program's docstring about the names of engines."""


def emit_sync(trainer: Sharded, generator: Sharded, *, colocated: bool, dtype: str, block: int = 0) -> str:
    """Return the source of the module with `sync(trainer, generator, number)` for torch.

    Args:
        trainer: the layouts of the training plan.
        generator: the layouts of the generator, a plan of the same model.
        colocated: True if both sides have the same ranks, else the generator's follow.
        dtype: how the generator holds weights: fp32, bf16, fp16, or float8 for those that `narrows` names.
        block: elements along each side of a block of float8 with one scale; 0: one scale for a matrix.
    """
    facts = TorchFacts(colocated=colocated, float8=dtype == "float8", block=block)
    core = specialise("planc.sharding", "transfer_core", facts, CORE, WIDTH)
    core += specialise("planc.backends.common", "box_reader", facts, ["open_checkpoint"], WIDTH)
    names = engine_names(generator.model)
    parts = [*core, *specialise("planc.backends.cuda.program", "sync", facts, ["sync", "load"], WIDTH)]
    if names:
        engine = ["checkpoint_names", *(["engine_views"] if dtype != "float8" or block else [])]
        parts += specialise("planc.backends.cuda.program", "engine", facts, engine, WIDTH)
    nodes = {part: ast.parse(part).body[0] for part in parts}
    constants = [part for part, node in nodes.items() if isinstance(node, ast.Assign)]
    classes = [part for part, node in nodes.items() if isinstance(node, ast.ClassDef) and node.bases]
    functions = [part for part in parts if part not in (*constants, *classes)]
    table = _table(trainer, generator, colocated, dtype, names)
    head = [_docstring(trainer.plan, generator.plan, colocated, bool(names)), IMPORTS.strip(), "\n".join(constants)]
    return file_of(head, [*classes, table, *functions], width=WIDTH)


def _docstring(trainer: Plan, generator: Plan, colocated: bool, named: bool) -> str:
    place = "on the same ranks" if colocated else "on the ranks after them"
    said = (
        f"The weights of {trainer.file}, sent to the ranks that serve {generator.name}.",
        "",
        f"trained  {trainer.file}: mesh {_mesh(trainer)}",
        f"served   {generator.file}: mesh {_mesh(generator)}, {place}",
        "",
        "Compiled by planc; change the plans rather than this file. After a step, on every rank of a process group",
        "with the trainer's ranks and the generator's:",
        "",
        "    sync(dict(model.named_parameters()), weights, step)",
        "",
        "The generator alone takes them from a checkpoint of the training plan:",
        "",
        "    load(checkpoint, weights)",
        *(ENGINE if named else ()),
    )
    return '"""' + "\n".join(map(python_docstring, said)) + '\n"""'


def _mesh(plan: Plan) -> str:
    return " x ".join(f"{a.name} {a.size}" for a in plan.mesh.axes)


def _table(trainer: Sharded, generator: Sharded, colocated: bool, dtype: str, names: dict[str, tuple[str, str]]) -> str:
    moves = list(tensor_transfers(trainer, generator, state_layout(trainer)))
    wide = generator.plan.precision.compute if dtype == "float8" else dtype
    narrow = [python_string(m.param.name) for m in moves if dtype == "float8" and narrows(m.param)]
    rows = ",\n    ".join(call("TensorTransfer(", _arguments(move)).replace("\n", "\n    ") for move in moves)
    return lines(
        "# Trainer and generator: the first rank, ranks, ranks of a node.",
        f"SIDES = ({', '.join(map(repr, sides_of(trainer, generator, colocated=colocated)))})",
        "# The dtype in which weights travel.",
        f"DTYPE = {TORCH_DTYPES[wide]}",
        call("NARROW = {", list(dict.fromkeys(narrow))) if narrow else "",
        *_named(names),
        "# Tensors of so many bytes are sent together: 64 MiB a rank of a copy of the generator.",
        f"BUCKET_BYTES = {generator.plan.mesh.devices // generator.plan.data_parallel} * 2**26",
        f"TRANSFERS: tuple[TensorTransfer, ...] = (\n    {rows},\n)",
    )


def _named(names: dict[str, tuple[str, str]]) -> list[str]:
    if not names:
        return []
    rows = [
        "    " + call(f"{python_string(ours)}: (", list(map(python_string, both)), ",", depth=1).replace("\n", "\n    ")
        for ours, both in names.items()
    ]
    said = "# Names of parameters in Hugging Face's checkpoints, and in vLLM and SGLang."
    return [said, "NAMES = {", *rows, "}"]


def _arguments(move: TensorMove) -> list[str]:
    first, last = move.layers[0], move.layers[-1]
    several = len(move.layers) > 2 and move.layers == tuple(range(first, last + 1))
    layers = f"(*range({f'{first}, ' if first else ''}{last + 1}),)" if several else repr(move.layers)
    sides = [call("TensorLayout(", list(map(repr, held)), depth=2) for held in (move.source, move.target)]
    return [python_string(move.param.name), str(move.number), layers, *(side.replace("\n", "\n    ") for side in sides)]
