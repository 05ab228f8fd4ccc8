"""The emitted file: a plan as torch on XLA. Text only; nothing here imports a framework."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from planc.backends.common.source_writer import causes, comment, fill
from planc.backends.torch_xla import TORCH_XLA
from planc.backends.torch_xla.emit.templates import ANNOTATIONS, DOCSTRING, IMPORTS, LOSS, MESH, OPTIMIZER, STEP
from planc.backends.xla.analysis.layouts import Spec, activation_spec
from planc.backends.xla.emit.program import NO_PLAN
from planc.backends.xla.emit.specs import entry
from planc.backends.xla.emit.tables import constants, not_decayed, param_tables
from planc.diag.quoting import python_docstring
from planc.ir.base import plain_name
from planc.ir.model import Op
from planc.ir.sharding import Sharded
from planc.ir.version import Version, dotted

RETURNED = ("embedding", "norm", "matmul", "attention", "add")
"""Kinds of ops whose output is what their module returns."""


def emit(sharded: Sharded, version: Version = TORCH_XLA.pinned) -> str:
    """The whole file of `sharded` for a `version` of torch_xla, the same bytes for the same plan."""
    tables = [
        [line.replace("jnp.", "torch.") for line in constants(sharded)],
        param_tables(sharded),
        not_decayed(sharded),
        outputs_table(sharded),
    ]
    guard = TORCH_XLA.guard(sharded, version)
    head = [
        _docstring(sharded, version),
        IMPORTS.strip(),
        guard + "\n",
        _P.strip() + "\n",
        *("\n".join(lines) for lines in tables),
    ]
    functions = [NO_PLAN, MESH, ANNOTATIONS, LOSS, OPTIMIZER, STEP]
    return "\n\n".join(head) + "\n\n\n" + "\n\n\n".join(f.strip("\n") for f in functions) + "\n"


_P = '''
def P(*axes: Any) -> tuple[Any, ...]:  # noqa: N802
    """The mesh axes that divide each dimension of a tensor."""
    return axes
'''


def outputs_table(sharded: Sharded) -> list[str]:
    """`OUTPUTS`: where what a module returns rests, by the module's name."""
    rows = chain.from_iterable(entry(name, spec) for name, spec in outputs(sharded).items())
    head = comment("What modules return, and where it rests; its gradient rests there too.")
    return [*head, *causes(s.cause for s in sharded.plan.shards), "OUTPUTS = {", *rows, "}"]


def outputs(sharded: Sharded) -> dict[str, Spec]:
    """Per module the spec of what it returns. A module of several ops returns what the last one makes."""
    found: dict[str, Spec] = {}
    for op in _ops(sharded):
        if op.kind in RETURNED and op.region != "experts":
            found[op.module] = _linear_output_spec(op, activation_spec(sharded, op.output))
    return found


def _linear_output_spec(op: Op, spec: Spec) -> Spec:
    """A linear module returns the heads side by side, [B, S, H * E]."""
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
