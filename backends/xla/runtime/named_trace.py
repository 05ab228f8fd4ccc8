"""Renames the events of a JAX profiler trace to match the spans of the predicted trace.

The program is compiled as one, so its instructions are named after the run: each collective by the sentence that causes
it, and every instruction by its part of the step.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import jax

from planc.backends.xla.analysis.mesh_factors import atoms, parts
from planc.backends.xla.audit.groups import axes_of, groups
from planc.backends.xla.audit.hlo import HloError, Instruction, parse
from planc.backends.xla.audit.inventory import FUSED_SCATTER, OPS
from planc.backends.xla.rules import realise
from planc.costing.step.span_names import TransferNames, optimizer_cause, part_name
from planc.files import read_bounded, write_atomically
from planc.ir.plan import Plan
from planc.ir.program_text import ProgramText
from planc.sharding.collectives import semantic_collectives

MOST_BYTES = 500_000_000
"""A larger trace, compressed or not, is left unchanged."""


class Name(NamedTuple):
    """The new name of an instruction in a trace: the part of the step (such as the backward), and `transfer`, the
    collective that the instruction runs, or ""."""

    part: str
    transfer: str = ""


def instruction_names(program: ProgramText, text: str) -> dict[str, Name]:
    """Return the names that a trace gives to the instructions of `text`, optimized HLO; {} if it cannot be parsed."""
    plan = program.plan
    rows = realise(program.sharded, semantic_collectives(program.sharded))
    transfers = TransferNames(("+".join(parts(plan, row.axes)), row) for row in rows)
    mesh = {a.name: a.size for a in atoms(plan)}
    found: dict[str, Name] = {}
    try:
        for computation in parse(text).computations.values():
            for i in computation.instructions.values():
                part, letter = _part(plan, i.source) if i.source else ("", "")
                fused = computation.name.startswith(FUSED_SCATTER)
                name = Name(part, _transfer(i, fused, mesh, transfers, letter))
                if any(name):
                    found[i.name] = name
    except HloError:
        return {}
    return found


def _part(plan: Plan, source: str) -> tuple[str, str]:
    """Return the part of the step that an operation belongs to, and the letter of the pipeline action ("F", "B" or "").
    `source` is the `op_name` that JAX gave the operation."""
    if "rematted_computation" in source:
        return part_name("", "recompute", [plan.recompute.cause]), "B"
    if "transpose(" in source:
        return "backward", "B"
    if "jvp(" in source:
        return "forward", "F"
    return part_name("", "optimizer", [optimizer_cause(plan)]), ""


def _transfer(i: Instruction, fused: bool, mesh: dict[str, int], transfers: TransferNames, letter: str) -> str:
    op = OPS.get(i.opcode.removesuffix("-start"))
    if op is None:
        return ""
    axes, exact = axes_of(groups(i.attributes, prod(mesh.values())), mesh)
    if not exact and op != "send_recv":
        return f"{op} over a part of {'+'.join(axes)}: not predicted"
    return transfers.name("reduce_scatter" if fused and op == "all_reduce" else op, "+".join(axes), letter)


@contextmanager
def named_trace(folder: Path, names: Callable[[], dict[str, Name]]) -> Iterator[None]:
    """Run JAX's profiler, which writes into `folder`, then rename the events of its Perfetto trace to `names()`."""
    before = set(folder.rglob("*.trace.json.gz"))
    with jax.profiler.trace(str(folder)):
        yield
    for path in set(folder.rglob("*.trace.json.gz")) - before:
        rename_events(path, names())


def rename_events(path: Path, names: dict[str, Name]) -> None:
    """Rename the events of the trace at `path`; `names` maps instructions to new names. The argument `hlo_op` of an
    event keeps the instruction's name."""
    if path.stat().st_size > MOST_BYTES:
        return
    with gzip.GzipFile(fileobj=BytesIO(read_bounded(path, MOST_BYTES))) as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        return
    made: dict[str, Any] = json.loads(content)
    for event in made["traceEvents"]:
        name = names.get(event.get("args", {}).get("hlo_op", ""))
        if name is not None:
            event["args"]["part"] = name.part
            event["name"] = name.transfer or event["name"]
    write_atomically(path, gzip.compress(json.dumps(made).encode()))
