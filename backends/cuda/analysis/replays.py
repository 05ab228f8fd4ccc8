"""Models torch's selective checkpoint: a recompute of blocks that saves some outputs, by module and kind of op.

torch's policy decides for every op whether to save its output. The policy does not know the plan's tensors, and a
recompute runs the block from its beginning. So the outputs of matmuls and attention are saved unless the plan
recomputes them. Everything between them (norms, rotary, activations, adds) is recomputed, whether the plan names it or
not. Source: `create_selective_checkpoint_contexts`, https://docs.pytorch.org/docs/stable/checkpoint.html.
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
    """True if the plan's `recompute` sentence recomputes `op`, whether the output of `op` is needed or not."""
    recompute = sharded.plan.recompute
    named = recompute.blocks or any(names_op(word, op) for word in recompute.ops)
    return bool(named and not any(names_op(word, op) for word in recompute.kept))


@cached_on(lambda sharded: (sharded.cache, ()))
def is_selective(sharded: Sharded) -> bool:
    """True if the plan recomputes blocks and saves some of their outputs by module. False if it recomputes nothing,
    whole modules, or all of a block but whole kinds of op."""
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
    """True if a selective recompute of blocks is supported for this plan (`planc.backends.cuda.refusals.blocks`)."""
    plan = roles.plan
    return not (roles.context or roles.experts.ops or plan.quantize or plan.compiled("blocks"))


def _is_saved_by_others(sharded: Sharded, op: Op) -> bool:
    """True if an op that is not recomputed saves the output of `op`: wrapping `op` alone would then save nothing.

    This holds for norms, whose output matmuls save. The output of attention's core is saved by others too, but
    recomputing the core still saves memory inside the op, as in Megatron's `--recompute-activations`.
    """
    users = (o.op for kind in sharded.model.blocks for o in sharded.ops[kind])
    return any(op.output in user.saves and not named_again(sharded, user) for user in users)


def saved_in(sharded: Sharded, section: Section) -> SavedOutputs:
    """Returns the outputs that a selective recompute of one kind of block (`section`) saves, by module."""
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
    """True if the redistribution `move` communicates; a slice, which is always the last step, does not."""
    return move is not None and move.steps[0].kind != "slice"


def _saved_gathered(sharded: Sharded, b: Boundary, producers: dict[str, Op]) -> bool:
    """True if the input of a saved op is saved after its all-gather, because the plan does not recompute the op that
    produces the input."""
    maker = producers.get(b.o.op.inputs[0])
    return maker is not None and not named_again(sharded, maker)


def _last_product(sharded: Sharded, section: Section) -> str:
    """Returns the name of the block's last matmul: a recompute stops before this op. "" without a matmul."""
    return next((o.op.name for o in reversed(sharded.ops[section]) if o.op.kind == "matmul"), "")


@cached_on(lambda sharded, section: (sharded.cache, section))
def replay(sharded: Sharded, section: Section) -> Replay:
    """Returns the tensors that torch's checkpoint saves and the ops that it recomputes in a block (`section`)."""
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
    """Returns the saved tensors and recomputed ops if modules are checkpointed separately. Each checkpointed module
    saves its inputs. The other ops save what they need, even outputs of checkpointed modules."""
    ops = ops_by_code(sharded.plan, section)
    wrapped = {op.name for op in ops if named_again(sharded, op)}
    again = [op for op in ops if op.name in wrapped and op.saves]
    within = {(op.module, op.output) for op in again}
    into = {t for op in again for t in op.inputs if (op.module, t) not in within}
    saved = into | {t for op in ops if op.name not in wrapped for t in op.saves}
    return Replay(
        saved=tuple(t.name for t in sharded.model.tensors if t.name in saved), ops=tuple(op.name for op in again)
    )
