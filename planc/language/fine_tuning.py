"""Applies fine-tuning to a model: frozen parameters, and low-rank updates (LoRA) of frozen weights.

Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models" (section 4.1): y = W x + alpha / rank B A x, with W
frozen, A initialized randomly and B with zeros.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby

from planc.ir.model import LORA_A, LORA_B, LORA_RANK, Model, Op, Param, Run, Section, Tensor
from planc.ir.plan import Freeze, Lora
from planc.sharding.recompute import names_op

PARTS = ("model", "blocks", "norms")
"""Words after `freeze` that mean more than one op: all parameters, those of the blocks, and those of norms."""


def fine_tuned(model: Model, freeze: Freeze | None, lora: Lora | None) -> Model:
    """Return `model` with the low-rank matrices of `lora`, and without gradients of frozen parameters.

    With `lora`, all of the model's own parameters are frozen except those that the `freeze` sentence names after
    `except`. If both are None, the model is returned unchanged.
    """
    if freeze is None and lora is None:
        return model
    updated = _with_updates(model, lora) if lora else model
    frozen = _frozen(model, freeze, lora)
    params = tuple(replace(p, frozen=p.name in frozen) for p in updated.params)
    return _with_gradients(replace(updated, params=params))


def _frozen(model: Model, freeze: Freeze | None, lora: Lora | None) -> set[str]:
    """Return the names of the model's frozen parameters. A tied parameter is frozen if either op that uses it is."""
    parts, kept = (freeze.parts, freeze.kept) if freeze else ((), ())
    return _named(model, parts if lora is None else ("model",)) - _named(model, kept)


def _named(model: Model, parts: Iterable[str]) -> set[str]:
    return {
        name
        for section, ops in model.ops.items()
        for op in ops
        for part in parts
        if part == "model"
        or (part == "blocks" and section in model.blocks)
        or (part == "norms" and op.kind == "norm")
        or names_op(part, op)
        for name in op.params
    }


def _with_updates(model: Model, lora: Lora) -> Model:
    """Return the model with the matrices A and B at each matmul of `lora`, and the activation between A and B."""
    params: dict[str, Param] = {}
    tensors: dict[str, Tensor] = {}

    def updated(op: Op) -> Op:
        if op.kind != "matmul" or op.name not in lora.ops:
            return op
        weight = model.param[op.params[0]]
        made, taken = weight.shape_dims
        a, b = f"{op.module}{LORA_A}", f"{op.module}{LORA_B}"
        params[a] = replace(weight, name=a, shape_dims=((LORA_RANK,), taken), init="normal")
        params[b] = replace(weight, name=b, shape_dims=(made, (LORA_RANK,)), init="zeros")
        rows = tuple(d for d in model.tensor[op.inputs[0]].dims if d not in taken)
        between = Tensor(name=f"{op.name}.rank", dims=(*rows, LORA_RANK), region=op.region)
        tensors[between.name] = between
        return replace(op, params=(*op.params, a, b), saves=(*op.saves, between.name))

    blocks = {kind: tuple(updated(op) for op in model.ops[kind]) for kind in model.blocks}
    return replace(
        model,
        sizes={**model.sizes, LORA_RANK: lora.rank},
        params=(*model.params, *params.values()),
        tensors=(*model.tensors, *tensors.values()),
        ops={**model.ops, **blocks},
    )


def _with_gradients(model: Model) -> Model:
    """Return the model with the gradients and saved tensors that each op needs after freezing.

    Blocks whose input has no gradient do less work in the backward. A kind of block with and without one becomes two
    kinds.
    """
    first, reached = _walked(model, model.ops["first"], {})
    ops: dict[Section, tuple[Op, ...]] = {"first": first}
    kinds, split = [], {}
    stream = model.block_output
    behind: set[Section] = set()
    alive = stream in reached
    flags = []
    for kind in model.kinds:
        flags.append(alive)
        alive = stream in _walked(model, model.ops[kind], {stream} if alive else {})[1]
    behind = {kind for kind, flag in zip(model.kinds, flags, strict=True) if flag}
    for kind, flag in zip(model.kinds, flags, strict=True):
        name = kind if flag or kind not in behind else f"opening_{kind}"
        if name != kind:
            split[kind] = name
        kinds.append(name)
        ops[name] = _walked(model, model.ops[kind], {stream} if flag else {})[0]
    ops["last"] = _walked(model, model.ops["last"], {stream} if alive else {})[0]
    params = tuple(replace(p, also=(*p.also, *(split[s] for s in p.sections if s in split))) for p in model.params)
    runs = tuple(Run(section=kind, layers=len(list(same))) for kind, same in groupby(kinds))
    return replace(model, ops=ops, params=params, runs=runs if split or model.runs else ())


def _walked(model: Model, ops: tuple[Op, ...], given: Iterable[str]) -> tuple[tuple[Op, ...], set[str]]:
    """Return the `ops` with their inputs that need no gradient, and the tensors that have a gradient after them.
    `given` are the tensors that have a gradient before them."""
    alive, found = set(given), []
    for op in ops:
        fixed = [t for t in op.inputs if t not in alive] + [p for p in op.params if model.param[p].frozen]
        through = len({*fixed}) < len({*op.inputs, *op.params})
        found.append(replace(op, fixed=tuple(dict.fromkeys(fixed)), saves=_saved(model, op) if through else ()))
        alive = alive | {op.output} if through else alive - {op.output}
    return tuple(found), alive


def _saved(model: Model, op: Op) -> tuple[str, ...]:
    """Return the tensors that `op` saves for its backward. A matmul saves its input only for the gradient of a trained
    weight."""
    trained = [p for p in op.params if not model.param[p].frozen]
    if op.kind == "matmul" and all(len(model.param[p].shape_dims) < 2 for p in trained):
        return ()
    return op.saves if op.kind != "embedding" or trained else ()
