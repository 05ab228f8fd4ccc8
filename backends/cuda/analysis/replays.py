"""Models torch's selective checkpoint: a recompute of blocks that saves the outputs of some ops.

torch's policy decides for every op whether to save its output. The policy sees the module and the kind of an op, but
not the plan's tensors. So a recompute saves the outputs of matmuls and attention, unless the plan recomputes these ops.
All ops between them (norms, rotary, activations, adds) are recomputed, even if the plan does not name them. Source:
`create_selective_checkpoint_contexts`, https://docs.pytorch.org/docs/stable/checkpoint.html.
"""

from __future__ import annotations

from typing import TypeGuard

from planc.backends.cuda.analysis.expert_mesh import routed
from planc.backends.cuda.analysis.module_placements import Boundary, relative
from planc.backends.cuda.analysis.own_code import ops_by_code
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.analysis.styles import Styler
from planc.ir.cache import cached_on
from planc.ir.model import Op, Section
from planc.ir.sharding import Move, Sharded
from planc.sharding.recompute import Replay, close, names_op
from planc.sharding.recompute import replay as plain_replay

HEAVY = ("matmul", "attention")
"""Kinds of op whose outputs a selective recompute saves, unless the plan recomputes them."""

SavedOutputs = dict[str, tuple[str, ...]]
"""For a module's path in its block, the kinds of torch op whose outputs are saved in that module: op kinds of the plan,
or a collective where the module begins or ends."""


def named_again(sharded: Sharded, op: Op) -> bool:
    """True if the plan's `recompute` sentence names `op`, even if the backward does not need the output of `op`."""
    recompute = sharded.plan.recompute
    named = recompute.blocks or any(names_op(word, op) for word in recompute.ops)
    return bool(named and not any(names_op(word, op) for word in recompute.kept))


@cached_on(lambda sharded: (sharded.cache, ()))
def is_selective(sharded: Sharded) -> bool:
    """True if the plan recomputes blocks and saves the outputs of some of their modules. False if it recomputes
    nothing, whole blocks or whole modules, or if it saves the outputs of all ops of a kind."""
    recompute = sharded.plan.recompute
    if not recompute.ops or recompute.whole:
        return False
    roles = AxisRoles(sharded)
    if recompute.blocks:
        kept = [o.op for kind in sharded.model.blocks for o in sharded.ops[kind] if not named_again(sharded, o.op)]
        kinds = {op.kind for op in kept}
        all_of_kinds = all(
            not named_again(sharded, o.op)
            for kind in sharded.model.blocks
            for o in sharded.ops[kind]
            if o.op.kind in kinds
        )
        by_kind = kinds <= set(HEAVY) and all_of_kinds and not (roles.tensor and "matmul" in kinds)
        return bool(kept) and not by_kind
    styler = Styler(sharded, roles)
    boundaries = [b for kind in sharded.model.blocks for b in styler.section(kind) if named_again(sharded, b.o.op)]
    if any(not b.alone for b in boundaries):
        return True
    light = [b.o.op for b in boundaries if b.o.op.kind != "attention"]
    return _can_keep_outputs(roles) and any(_is_saved_by_others(sharded, op) for op in light)


def _can_keep_outputs(roles: AxisRoles) -> bool:
    plan = roles.plan
    return not (roles.context or roles.experts.ops or plan.quantize or plan.compiled("blocks"))


def _is_saved_by_others(sharded: Sharded, op: Op) -> bool:
    """True if an op that is not recomputed saves the output of `op`, so that recomputing `op` alone saves no memory.

    This holds for norms, whose output a matmul saves. It holds for attention too, but recomputing attention saves the
    memory inside the op (Megatron's `--recompute-activations`).
    """
    users = (o.op for kind in sharded.model.blocks for o in sharded.ops[kind])
    return any(op.output in user.saves and not named_again(sharded, user) for user in users)


def saved_in(sharded: Sharded, section: Section) -> SavedOutputs:
    """Returns the outputs that a selective recompute saves in one kind of block (`section`), by module path."""
    roles = AxisRoles(sharded)
    styler = Styler(sharded, roles)
    found: dict[str, list[str]] = {}
    producers = {o.op.output: o.op for o in sharded.ops[section]}
    last = _last_product(sharded, section)
    for b in styler.section(section):
        if routed(b.o.op) or b.o.op.kind not in HEAVY or named_again(sharded, b.o.op):
            continue
        move = b.move()
        if _sends(move) and _saved_gathered(sharded, b, producers):
            found.setdefault(relative(styler.shared_parent(b)) or b.path, []).append(move.steps[0].kind)
        if b.o.op.name != last:
            found.setdefault(b.path, []).append(b.settle.steps[0].kind if _sends(b.settle) else b.o.op.kind)
    return {path: tuple(dict.fromkeys(kinds)) for path, kinds in found.items()}


def _sends(move: Move | None) -> TypeGuard[Move]:
    """True if the redistribution `move` communicates. A redistribution that starts with a slice does not."""
    return move is not None and move.steps[0].kind != "slice"


def _saved_gathered(sharded: Sharded, b: Boundary, producers: dict[str, Op]) -> bool:
    """True if torch saves the gathered input of an op, because the plan does not recompute the op that produces the
    input."""
    maker = producers.get(b.o.op.inputs[0])
    return maker is not None and not named_again(sharded, maker)


def _last_product(sharded: Sharded, section: Section) -> str:
    """Returns the name of the last matmul of a block, where a recompute stops; "" for a block without a matmul."""
    return next((o.op.name for o in reversed(sharded.ops[section]) if o.op.kind == "matmul"), "")


@cached_on(lambda sharded, section: (sharded.cache, section))
def replay(sharded: Sharded, section: Section) -> Replay:
    """Returns the tensors that torch's checkpoint saves and the ops that it recomputes in a block of kind `section`."""
    if sharded.plan.recompute.blocks and not is_selective(sharded):
        return plain_replay(sharded.plan, section)
    if not is_selective(sharded):
        return _replay_of_modules(sharded, section)
    roles = AxisRoles(sharded)
    styler = Styler(sharded, roles)
    producers = {o.op.output: o.op for o in sharded.ops[section]}
    gathered = {
        producers[b.o.op.inputs[0]].name
        for b in styler.section(section)
        if not routed(b.o.op)
        and b.o.op.kind in HEAVY
        and not named_again(sharded, b.o.op)
        and _sends(b.move())
        and _saved_gathered(sharded, b, producers)
    }
    ops = ops_by_code(sharded.plan, section)
    again = {op.name for op in ops if named_again(sharded, op) or (op.kind not in HEAVY and op.name not in gathered)}
    return close(sharded.model, ops, again)


def _replay_of_modules(sharded: Sharded, section: Section) -> Replay:
    """Returns the saved tensors and recomputed ops if modules are checkpointed one by one. A checkpointed module saves
    its inputs. All other ops save the tensors that their backward needs."""
    ops = ops_by_code(sharded.plan, section)
    wrapped = {op.name for op in ops if named_again(sharded, op)}
    again = [op for op in ops if op.name in wrapped and op.saves]
    within = {(op.module, op.output) for op in again}
    into = {t for op in again for t in op.inputs if (op.module, t) not in within}
    saved = into | {t for op in ops if op.name not in wrapped for t in op.saves}
    return Replay(
        saved=tuple(t.name for t in sharded.model.tensors if t.name in saved), ops=tuple(op.name for op in again)
    )
