"""Recomputation: which ops the backward recomputes, and which tensors the forward saves."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from planc.diag.fast_dataclass import dataclass
from planc.frameworks import policy_of
from planc.ir.cache import Cache, cached_on
from planc.ir.model import Model, Op, Section
from planc.ir.plan import Plan


@dataclass(frozen=True, slots=True)
class Replay:
    """The recomputation of one block: the tensors that the forward saves (`saved`), and the ops that the backward
    recomputes, in order of execution (`ops`)."""

    saved: tuple[str, ...]
    ops: tuple[str, ...]
    updates: tuple[str, ...] = ()
    """Ops of which only the first matmul of a low-rank update is recomputed."""


def names_op(word: str, op: Op) -> bool:
    """True if `word`, written in a plan, is the dotted name of `op` or a prefix: `ffn` names `ffn.gate`."""
    return op.name == word or op.name.startswith(f"{word}.")


def replay(plan: Plan, section: Section = "block") -> Replay:
    """Return the saved tensors and the recomputed ops of one block of the kind `section` under `plan`.

    >>> replay(plan).ops  # `recompute attention.core`
    ('attention.core',)
    """
    return _replay(plan, section)


@cached_on(lambda model, section: (model.cache, section))
def saved_without_recompute(model: Model, section: Section) -> tuple[str, ...]:
    """Return the tensors that one kind of block (`section`) of `model` saves without recomputation."""
    return close(model, model.ops[section], set()).saved


def _key(plan: Plan, section: Section) -> tuple[Cache, Hashable]:
    return plan.model.cache, (section, plan.recompute.ops, plan.recompute.kept, _weighs_outputs(plan))


def _weighs_outputs(plan: Plan) -> bool:
    return policy_of(plan.framework).weighs_outputs


@cached_on(_key)
def _replay(plan: Plan, section: Section) -> Replay:
    block = plan.model.ops[section]
    if _weighs_outputs(plan):
        block = tuple(replace(op, saves=(*op.inputs[:1], *op.saves)) if op.kind == "combine" else op for op in block)
    again = {o.name for o in block if (plan.recompute.blocks or _named(plan.recompute.ops, o))}
    again -= {o.name for o in block if _named(plan.recompute.kept, o)}
    found = close(plan.model, block, again)
    if not plan.recompute.whole:
        return found
    return Replay(saved=found.saved, ops=tuple(op.name for op in block if op.name in again))


def _named(words: tuple[str, ...], op: Op) -> bool:
    return any(names_op(word, op) for word in words)


def close(model: Model, block: tuple[Op, ...], again: set[str]) -> Replay:
    """Return the ops of a block that the backward recomputes and the tensors that the forward saves for it.

    Only ops named in `again` are recomputed, and only if their output is needed: a full recompute of a block stops
    before its last projection. Needed tensors that other ops produce are saved.
    """
    producer = {op.output: op for op in block[:-1]}
    inside = {t: op for op in block if op.update for t in op.saves if t not in op.inputs}
    needed = [t for op in block for t in op.saves]
    saved: dict[str, None] = {}
    run: set[str] = set()
    updates: set[str] = set()
    while needed:
        name = needed.pop()
        if name in inside and inside[name].name in again:
            updates.add(inside[name].name)
            needed.extend(t for t in inside[name].inputs if t not in saved)
            continue
        op = producer.get(name)
        if op is None or op.name not in again:
            saved[name] = None
        elif op.name not in run:
            run.add(op.name)
            needed.extend(op.inputs)
    order = tuple(op.name for op in block if op.name in run)
    return Replay(
        saved=tuple(t.name for t in model.tensors if t.name in saved),
        ops=order,
        updates=tuple(op.name for op in block if op.name in updates - run),
    )
