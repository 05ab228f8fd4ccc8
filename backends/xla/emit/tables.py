"""Emits the tables of a file: constants, parameter specs and activation specs, each with the sentence it comes from and
the collectives it causes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from planc.backends.common.source_writer import INDENT, WIDTH, beside, causes, comment
from planc.backends.xla.analysis.compiler_options import option_rows
from planc.backends.xla.analysis.layouts import (
    Spec,
    Use,
    activation_spec,
    param_spec,
    repeated_over,
    spec_of,
    steps_of,
    uncut,
)
from planc.backends.xla.analysis.lookup import looked_up_by_columns
from planc.backends.xla.analysis.mesh_factors import aliases, atoms
from planc.backends.xla.analysis.pipeline import pipelined
from planc.backends.xla.analysis.slices import ranks_over_slices
from planc.backends.xla.analysis.state_dtypes import JAX_DTYPE, narrow_state
from planc.backends.xla.emit.context_parallel import given_spec
from planc.backends.xla.emit.offload import memory_lines
from planc.backends.xla.emit.specs import entry, spec_text
from planc.diag.quoting import python_string
from planc.ir.base import Cause
from planc.ir.model import EXPERTS, ROUTED, Tensor
from planc.ir.plan import NOUNS, Noun, Plan
from planc.ir.sharding import Layout, Move, OpSharding, RedistributionStep, Sharded
from planc.ir.version import Version


def constants(sharded: Sharded) -> list[str]:
    """Return the lines of the mesh, the batch and the dtype of the plan in `sharded`."""
    plan = sharded.plan
    sizes = ", ".join(f"{python_string(a.name)}: {a.size}" for a in atoms(plan))
    other = [f"{name} is {' and '.join(made)}" for name, made in aliases(plan).items()]
    sequences = plan.batch.microbatch_sequences * plan.data_parallel
    batch = [s.cause for s in plan.shards if s.dim == "batch"]
    compute = plan.precision.cause.comment() if plan.precision.cause else ""
    return [
        *beside(f"MESH = {{{sizes}}}", f"outermost first; {plan.mesh.cause.comment()}"),
        *_slices(plan),
        *causes(view.cause for view in plan.mesh.views),
        *comment("; ".join(other)),
        *beside(f"DATA_PARALLEL = {plan.data_parallel}", f"ranks that divide the batch{_cause_text(batch)}"),
        *beside(f"MICROBATCH = {sequences}", f"sequences on all of them; {plan.batch.cause.comment()}"),
        *beside(f"BATCH = {spec_text(given_spec(sharded))}", "tokens and targets, [sequences, tokens of each]"),
        *beside(f"COMPUTE = {JAX_DTYPE[plan.precision.compute]}", compute),
        *(line for noun in NOUNS for line in _dtype_line(plan, noun)),
        *memory_lines(plan),
    ]


def _slices(plan: Plan) -> list[str]:
    """Return the lines of `SLICES`, the number of TPU slices that each axis spans; [] for one slice."""
    across = ", ".join(f"{python_string(name)}: {ranks}" for name, ranks in ranks_over_slices(plan).items())
    said = f"ranks of an axis on different slices; {plan.cluster.cause.comment()}"
    return beside(f"SLICES = {{{across}}}", said) if across else []


def _dtype_line(plan: Plan, noun: Noun) -> list[str]:
    """Return the line that defines the stored dtype of `noun` (params, grads or optimizer); [] if all state is fp32."""
    if not narrow_state(plan):
        return []
    said = next((s.cause.comment() for s in plan.stores if s.noun == noun and s.dtype), "")
    return beside(f"{noun.upper()}_DTYPE = {JAX_DTYPE[plan.store_dtype(noun)]}", said)


def _cause_text(found: list[Cause]) -> str:
    return f"; {found[0].comment()}" if found else ""


def options_table(sharded: Sharded, jax: Version) -> list[str]:
    """Return the lines of `TPU_OPTIONS`, the options of the TPU compiler for `jax`; [] without TPUs."""
    rows = option_rows(sharded, jax)
    if not rows:
        return []
    lines = [
        line
        for row in rows
        for line in (*comment(row.note, 1), *(f'{INDENT}"{name}": {value},' for name, value in row.options.items()))
    ]
    return [
        *comment(f"Options of the TPU compiler for {sharded.plan.cluster.chip.name}."),
        "TPU_OPTIONS: dict[str, bool | int] = {",
        *lines,
        "}",
    ]


# Parameters.

HEADINGS: dict[Use, tuple[str, str]] = {
    "used": ("USED", "Parameters in use."),
    "params": ("PARAMS", "Parameters between uses."),
    "grads": ("GRADS", "Gradients: summed over the data axes into this layout."),
    "optimizer": ("OPTIMIZER", "Optimizer state."),
}


def param_tables(sharded: Sharded) -> list[str]:
    """Return the lines of `USED` (layouts in use) and `PARAMS`, `GRADS`, `OPTIMIZER` (layouts in storage) for
    `sharded`; a table that equals an earlier one is an alias."""
    out = comment("One layer's layout by parameter name, [out, in] for a weight; `*` stands for its number.")
    known: dict[str, str] = {}
    for use, (name, said) in HEADINGS.items():
        rows = _param_rows(sharded, use)
        same = known.get(repr(rows))
        known.setdefault(repr(rows), name)
        out += [*comment(f"{said}{_same_as(same)}"), *_store_causes(sharded, use)]
        out += [f"{name} = {same}"] if same else [f"{name} = {{", *rows, "}"]
    return out


def _same_as(same: str | None) -> str:
    return f" As {same}." if same else ""


def _store_causes(sharded: Sharded, use: Use) -> list[str]:
    plan = sharded.plan
    if use != "used":
        return causes(s.cause for s in plan.stores if s.noun == use)
    mentioned = {a for p in sharded.params for a in p.axes()}
    shards = [s.cause for s in plan.shards if mentioned & set(s.axes) and s.dim != "batch" and not s.region]
    return causes(chain(shards, (o.cause for o in plan.overrides)))


def _param_rows(sharded: Sharded, use: Use) -> list[str]:
    rows: list[str] = []
    columns = looked_up_by_columns(sharded)
    for p in sharded.params:
        whole = use != "used" and uncut(sharded.plan, p, use)
        said = "no dimension divides: kept whole" if whole else ""
        laid = "params" if use == "used" and p == columns else use
        rows += entry(p.param.name, param_spec(sharded.plan, p, laid), said)
    return rows


def not_decayed(sharded: Sharded) -> list[str]:
    """Return the lines of `NOT_DECAYED`, the names of the parameters in `sharded` without weight decay."""
    names = [python_string(p.name) for p in sharded.model.params if not p.decay]
    return ["NOT_DECAYED = {", *(f"{INDENT}{name}," for name in names), "}"]


# Activations.


def activation_table(sharded: Sharded) -> list[str]:
    """Return the lines of `ACTIVATIONS`, the layout of each activation between ops."""
    scoped = (s.cause for s in sharded.plan.shards)
    rows = chain.from_iterable(_activation(sharded, t) for t in _activations(sharded))
    head = comment("Activations between ops, and the collectives that XLA inserts there in the forward.")
    return [*head, *causes(scoped), "ACTIVATIONS = {", *rows, "}"]


Exchange = tuple[tuple[Spec, ...], tuple[Spec, ...]]
"""The layouts of an activation before its own layout, and after it until an op reads it."""


def exchanged(sharded: Sharded) -> dict[str, Exchange]:
    """Return the intermediate layouts to which the program constrains each activation: those between its producer and
    its own layout, and those between its own layout and all readers.

    It does so for all-to-alls, at matmuls that several ranks compute whole, and where XLA would gather twice.
    """
    made: dict[str, tuple[Spec, ...]] = {}
    read: dict[str, list[tuple[OpSharding, Move | None]]] = {}
    for o in _ops(sharded):
        if o.settle is not None and (_gathers_twice(sharded, o) if o.partial else _stated(sharded, o, o.settle)):
            made[o.op.output] = (_spec(sharded, o.op.output, o.settle.before),)
        for name, move in zip(o.op.inputs, o.redistributions, strict=True):
            read.setdefault(name, []).append((o, move))
    there: dict[str, tuple[Spec, ...]] = {}
    for name, found in read.items():
        move = found[0][1]
        if move is None or any(m is None or m.after != move.after for _, m in found):
            continue
        if any(_stated(sharded, o, move) for o, _ in found):
            # First the sharded layout again: otherwise XLA would save the gathered tensor for the backward.
            gathers = any(s.kind == "all_gather" for s in move.steps)
            rests = (activation_spec(sharded, name),) if gathers and not _exchanges(sharded, move) else ()
            there[name] = (*rests, _spec(sharded, name, move.after))
    return {name: (made.get(name, ()), there.get(name, ())) for name in dict.fromkeys((*made, *there))}


def _stated(sharded: Sharded, o: OpSharding, move: Move) -> bool:
    """True if the program states the intermediate layout of the redistribution `move` at the op `o`: for an all-to-all,
    and at a matmul that several ranks compute whole, or whose input and result are both redistributed over one axis.
    XLA would otherwise split the matmul between the ranks, and gather its result or its weight."""
    if o.op.kind != "matmul":
        return _exchanges(sharded, move)
    into, out = (
        {a for m in moves if m is not None for s in steps_of(sharded, m) for a in s.axes}
        for moves in (o.redistributions, (o.settle,))
    )
    return _exchanges(sharded, move) or bool(into & out or repeated_over(o))


def _gathers_twice(sharded: Sharded, o: OpSharding) -> bool:
    """True if `o` is a matmul in a pipeline on CPU devices, and the result of `o` is reduce-scattered.

    XLA then gathers the result's gradient once for each of the two matmuls of the backward: XLA writes one device group
    in two ways and does not see that both are equal.
    """
    assert o.settle is not None
    scatters = o.op.kind == "matmul" and any(s.kind == "reduce_scatter" for s in o.settle.steps)
    return scatters and pipelined(sharded.plan) and not sharded.plan.cluster.has_tpus


def _exchanges(sharded: Sharded, move: Move) -> bool:
    return any(s.kind == "all_to_all" for s in steps_of(sharded, move))


def _spec(sharded: Sharded, tensor: str, layout: Layout) -> Spec:
    return spec_of(sharded.plan, sharded.model.tensor[tensor].dims, layout)


def exchange_table(sharded: Sharded) -> list[str]:
    """Return the lines of `EXCHANGED`, the intermediate layouts of activations; [] if there are none."""
    found = exchanged(sharded)
    if not found:
        return []
    rows = []
    for name, sides in found.items():
        texts = [f"({', '.join(map(spec_text, side))}{',' if len(side) == 1 else ''})" for side in sides]
        code = f"{INDENT}{python_string(name)}: ({', '.join(texts)}),"
        rows += (
            [code]
            if len(code) <= WIDTH
            else [f"{INDENT}{python_string(name)}: (", *(f"{INDENT * 2}{text}," for text in texts), f"{INDENT}),"]
        )
    said = "Layouts before and after an activation's own, reached by an all-to-all."
    return [*comment(said), "EXCHANGED: dict[str, tuple[tuple[P, ...], tuple[P, ...]]] = {", *rows, "}"]


def _activations(sharded: Sharded) -> Iterator[Tensor]:
    """Yield the floating-point tensors of the op graph, except the scalar loss and the tensors inside `experts`."""
    inside = (ROUTED, EXPERTS)
    yield from (t for t in sharded.model.tensors if t.dtype != "int" and t.dims and t.region not in inside)


def _activation(sharded: Sharded, tensor: Tensor) -> list[str]:
    said = "; ".join(collectives(sharded, tensor.name))
    return entry(tensor.name, activation_spec(sharded, tensor.name), said)


def collectives(sharded: Sharded, tensor: str) -> list[str]:
    """Return comments about the redistributions of `tensor`, from its producer's layout and to its readers' layouts."""
    settled = [_comment(sharded, o.settle, f"from {o.op.name}") for o in _ops(sharded) if o.op.output == tensor]
    return list(dict.fromkeys(s for s in (*settled, *_redistributed_inputs(sharded, tensor)) if s))


def _redistributed_inputs(sharded: Sharded, tensor: str) -> Iterator[str]:
    """Yield a comment for each layout to which `tensor` is redistributed, with all ops that need this layout."""
    readers: dict[str, tuple[Move, list[str]]] = {}
    for o in _ops(sharded):
        for name, move in zip(o.op.inputs, o.redistributions, strict=True):
            if name == tensor and move is not None:
                readers.setdefault(repr(move.after), (move, []))[1].append(o.op.name)
    for move, names in readers.values():
        yield _comment(sharded, move, f"for {', '.join(names)}")


def _ops(sharded: Sharded) -> Iterator[OpSharding]:
    yield from chain.from_iterable(sharded.ops.values())


def _comment(sharded: Sharded, move: Move | None, where: str) -> str:
    steps = [_step(s) for s in steps_of(sharded, move) if s.kind != "slice"] if move else []
    return f"{', '.join(steps)} {where}" if steps else ""


def _step(step: RedistributionStep) -> str:
    kind = step.kind.replace("_", "-")
    dims = " to ".join(d for d in (step.dim, step.to_dim) if d)
    return f"{kind} {dims} over {', '.join(step.axes)}".replace("  ", " ")
