"""Checks that an op graph from a file is consistent: names are declared, and sizes match.

The graphs of planc's catalog need no check.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

from planc.ir.model import SLOTS, Model, passed_on
from planc.ir.saved_by_code import elements_of

MOST_OPS, MOST_OPS_IN_ALL, MOST_PARAMETERS = 256, 4_000, 1_000
"""Limits on ops of one kind of block, ops of all kinds, and parameters. Checks compare the ops of a block pairwise, and
no known model has a tenth of these."""
MOST_ELEMENTS = 10**15
OUTSIDE_MODEL = ("batch", "sequence", SLOTS)
"""Dims whose lengths come from the batch."""


def model_inconsistencies(model: Model) -> Iterator[str]:
    """Yield a sentence for each mistake in the op graph `model`: undeclared names, and sizes that do not match."""
    ops_of = [len(ops) for ops in model.ops.values()]
    if max(ops_of, default=0) > MOST_OPS or sum(ops_of) > MOST_OPS_IN_ALL or len(model.params) > MOST_PARAMETERS:
        yield f"{sum(ops_of):,} ops and {len(model.params):,} parameters, more than any model has"
        return
    sections = {"first", "last", *model.blocks}
    yield from unknown("size", ["layers"], model.sizes)
    yield from unknown("section", [*model.ops, *(s for p in model.params for s in p.sections)], sections)
    yield from unknown("section without ops", sections, model.ops)
    dims = {*model.sizes, *(OUTSIDE_MODEL if "experts" in model.sizes else OUTSIDE_MODEL[:-1])}
    yield from unknown("dim", [d for p in model.params for d in p.dims], model.sizes)
    yield from unknown("dim", [d for t in model.tensors for d in t.dims], dims)
    yield from _shapeless(model)
    sized = {(dim,) for dim in model.sizes}
    for op in (op for ops in model.ops.values() for op in ops):
        if not op.inputs:
            yield f"the op `{op.name}` has no input"
        yield from unknown("tensor", [*op.inputs, op.output, *op.saves], model.tensor)
        yield from unknown("parameter", op.params, model.param)
        if (
            op.kind == "attention"
            and {model.tensor[t].dims[-1:] for t in (*op.inputs[:1], op.output) if t in model.tensor} - sized
        ):
            yield f"the op `{op.name}` attends over heads without a width"
        if op.kind == "loss" and [model.tensor[t].dtype == "int" for t in op.inputs if t in model.tensor][:1] == [True]:
            yield f"the loss `{op.name}` has its targets first"
        yield from unknown("input", op.whole_of, op.inputs)
        yield from unknown("input or parameter", op.fixed, (*op.inputs, *op.params))
        for code in op.own_code:
            yield from unknown("tensor", code.saves, model.tensor)
            yield from unknown("dim", [d for e in elements_of(code) for d in e.dims], dims)
        if [k.up_to for k in op.own_code[:-1]] != sorted({k.up_to for k in op.own_code[:-1]}):
            yield f"what the code of `{op.name}` keeps is not in the order of the lengths of a sequence"
        yield from unknown("dim", [d for e in op.multiply_adds for d in e.dims], dims)
        yield from unknown("dim", [*op.whole, *(d for whole in op.whole_of.values() for d in whole)], dims)
    yield from _unused(model)
    yield from _disordered(model)
    if "layers" in model.sizes and sum(run.layers for run in model.runs) not in (0, model.layers):
        yield "the runs of blocks are not as many as the layers"
    if model.rope_scaling and "rope_type" not in model.rope_scaling:
        yield "its rotary positions are scaled, and it does not say how"
    experts = model.sizes.get("experts", 0)
    if not min(1, experts) <= model.top_k <= experts:
        yield f"a token is sent to {model.top_k} of {experts} experts"
    if any(not ops for ops in model.ops.values()):
        yield "a section has no ops"


def _shapeless(model: Model) -> Iterator[str]:
    """Yield a sentence if a parameter has no dims, one twice, or more elements than any has. Dims of the model's own
    code are named after their lengths, of which two may be equal."""
    code = {name for ops in model.ops.values() for op in ops if op.kind == "code" for name in op.params}
    for param in model.params:
        if not param.dims or (len({*param.dims}) != len(param.dims) and param.name not in code):
            yield f"the parameter `{param.name}` has no dims, or one twice"
        elif prod(model.sizes.get(d, 1) for d in param.dims) > MOST_ELEMENTS:
            yield f"the parameter `{param.name}` has more elements than any has"


def _unused(model: Model) -> Iterator[str]:
    """Yield a sentence if a parameter is not used by an op of its section, or used by an op of another section."""
    used = {(name, section) for section, ops in model.ops.items() for op in ops for name in op.params}
    kept = {(param.name, section) for param in model.params for section in param.sections}
    for name, section in sorted(used ^ kept)[:1]:
        what = "no op of it uses it" if (name, section) in kept else "it is not one of it"
        yield f"the parameter `{name}` and the section `{section}`: {what}"


def _disordered(model: Model) -> Iterator[str]:
    """Yield a sentence about duplicate names, tensors without dims, and ops that read a later op's output."""
    for what, names in (("tensor", [t.name for t in model.tensors]), ("parameter", [p.name for p in model.params])):
        if len({*names}) != len(names):
            yield f"two {what}s have one name"
    scalars = {op.output for ops in model.ops.values() for op in ops if op.kind == "loss"}
    for tensor in model.tensors:
        if len({*tensor.dims}) != len(tensor.dims) or not (tensor.dims or tensor.name in scalars):
            yield f"the tensor `{tensor.name}` has no dims, or one twice"
        elif SLOTS in tensor.dims and tensor.dims[-1] not in model.sizes:
            yield f"the tensor `{tensor.name}` of tokens on their way to experts has no width"
    stream = {passed_on(ops) for kind in model.blocks for ops in (model.ops.get(kind, ()),) if ops}
    for section, ops in model.ops.items():
        made: set[str] = set()
        outputs = [op.output for op in ops]
        if len({*outputs}) != len(outputs) or len({op.name for op in ops}) != len(ops):
            yield f"two ops of the section `{section}` have one name or one output"
        for op in ops:
            if later := {*op.inputs} & ({*outputs} - made - stream):
                yield f"the op `{op.name}` reads `{min(later)}`, which a later one makes"
                return
            made.add(op.output)


def unknown(what: str, names: Iterable[str], known: Iterable[str]) -> Iterator[str]:
    """Yield a sentence about the first of `names` that is not in `known`, if any. `what` is their kind, such as
    `dim`."""
    strange = set(names) - set(known)
    if strange:
        yield f"unknown {what} `{min(strange)}`"
