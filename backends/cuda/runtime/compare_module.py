"""Compares a user's module with the plan's model (parameters, widths, depth) before the module is sharded."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from planc.backends.cuda.runtime.traced.bind import BoundModel
from planc.backends.cuda.runtime.traced.bind_block import common_path, places_of
from planc.backends.cuda.runtime.traced.bind_experts import experts_path
from planc.backends.cuda.runtime.traced.expert_form import form_of
from planc.backends.cuda.runtime.traced.loops import with_blocks
from planc.backends.cuda.runtime.traced.names import names_of
from planc.backends.cuda.runtime.traced.read import roles_of_module
from planc.backends.cuda.runtime.traced.roles import (
    AttentionLayers,
    DecoderRoles,
    ExpertLayers,
    FeedForwardLayers,
    UnknownError,
    heads_of,
)
from planc.backends.cuda.runtime.traced.same_steps import other_steps
from planc.backends.cuda.runtime.traced.share import on_a_share
from planc.backends.cuda.runtime.traced.shell import without_weights
from planc.diag import Diagnostic, PlanError
from planc.ir.model import LORA_A, LORA_B

if TYPE_CHECKING:
    from planc.ir.model import Model
    from planc.ir.program_text import ProgramText

Shape = tuple[int, ...]
MOST_SHOWN = 8
"""Maximum number of differences that are listed; the rest is counted."""
CONFIG_SIZES = {
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_dim",
    "num_local_experts": "experts",
    "num_experts": "experts",
}
"""Fields of a transformers config that no single parameter's shape shows, and the dims of the plan's model."""


def named(model: Any, program: ProgramText) -> Any:
    """Checks that `model` is the plan's model, and returns it with its parts renamed to the op graph's names.

    If its parameters have these names, `model` is returned unchanged; otherwise it is traced. Raises PlanError (E1205)
    with every difference, or E1207 to E1210 for code without an op graph. Needs no process group.
    """
    plan = program.plan
    span = (plan.model.cause or plan.mesh.cause).span
    roles = None
    if not has_our_names(model):
        try:
            roles = roles_of_module(model)
        except UnknownError as error:
            raise PlanError([Diagnostic("E1207", f"{type(model).__name__}: {error}", span)]) from None
        except PlanError as error:
            raise PlanError([replace(d, span=span) for d in error.diagnostics]) from None
    checked = model if roles is None else with_blocks(without_weights(model), roles.loop)
    wrong = list(differences(checked, plan.model, roles))
    if not wrong and roles is not None:
        if (heads := _ranks_of_heads(program)) > 1 and heads_of(roles) is not None:
            sequence = any(s.dim == "sequence" for s in plan.shards)
            roles, why = on_a_share(checked, roles, heads, keys_whole=_keys_whole(program), sequence=sequence)
            wrong = [why] if why else []
        wrong += list(_undivided(checked, program, roles))
    if wrong:
        shown = "; ".join(wrong[:MOST_SHOWN])
        more = f"; and {len(wrong) - MOST_SHOWN} more" if len(wrong) > MOST_SHOWN else ""
        message = f"{type(model).__name__} is not {plan.model.name}, the plan's model: {shown}{more}"
        advice = 'its own config, saved beside the plan, is read by `model from transformers "config.json"`'
        raise PlanError([Diagnostic("E1205", message, span, help=advice)])
    if roles is None:
        return model
    try:
        if plan.loss_chunks > 1:
            raise UnknownError("`loss in N chunks` multiplies by the head without the code around it; leave it out")
        if said := other_steps(model, roles):
            raise UnknownError(f"bound to a plan's names it would run other steps: {said}; this is a bug in planc")
        return BoundModel(model, roles, plan.batch.sequence_tokens)
    except UnknownError as error:
        raise PlanError([Diagnostic("E1207", f"{type(model).__name__}: {error}", span)]) from None


def has_our_names(model: Any) -> bool:
    """True if the parameters of `model` have the op graph's names."""
    return any(name == "tok_embeddings.weight" for name, _ in model.named_parameters())


def _ranks_of_heads(program: ProgramText) -> int:
    plan = program.plan
    axes = {axis for s in plan.shards if s.dim == "heads" for axis in s.axes}
    return prod(plan.mesh.every[axis].size for axis in axes)


def _keys_whole(program: ProgramText) -> bool:
    """True if keys and values are replicated on ranks with sharded query heads."""
    plan = program.plan
    region = next(op.region for op in plan.model.block_ops if op.kind == "attention")
    return "kv_heads" in plan.model.sizes and not plan.axes_of("kv_heads", region)


def _undivided(model: Any, program: ProgramText, roles: DecoderRoles) -> Iterator[str]:
    """Yields a message for each part of `model` that the plan shards, but whose code cannot run sharded."""
    plan = program.plan
    if re.search(r"[.\"]moe\b", program.text) and (wrong := next(_not_experts(model, roles), "")):
        yield wrong
    sequence = any(s.dim == "sequence" for s in plan.shards)
    halves = [
        h for b in roles.blocks for h in (b.attention, b.second) if isinstance(h, AttentionLayers | FeedForwardLayers)
    ]
    if sequence and any(not common_path(places_of(h)) and h.before is None for h in halves):
        yield "the plan shards the sequence, but layers in the block need all of it, and no norm precedes them"
    if roles.tied and roles.head.bias and any(s.dim == "vocab" for s in plan.shards):
        yield f"the plan shards the vocabulary, but {roles.head.bias} is the bias of a tied head"
    if sequence and roles.positions:
        yield "the plan shards the sequence, but its learned positions are added to all of it"


def _not_experts(model: Any, roles: DecoderRoles) -> Iterator[str]:
    """Yields a message, with the source line, for experts in `model` that compute something else than planc's."""
    for number, block in enumerate(roles.blocks):
        if isinstance(e := block.second, ExpertLayers):
            path = f"{roles.layers}.{number}.{experts_path(e)}"
            module = model.get_submodule(path)
            if form_of(module, e) is None or not common_path([experts_path(e), e.router.path]):
                kind = type(module)
                file = inspect.getsourcefile(kind) or ""
                line = inspect.getsourcelines(kind)[1]
                shown = file.rpartition("site-packages/")[2]
                yield f"{shown}:{line}: the plan shards experts, but those of {path} are stored or computed differently"


def differences(model: Any, expected: Model, roles: DecoderRoles | None = None) -> Iterator[str]:
    """Yields a message for each difference between `model` and `expected`, with the expected and the found value.

    `roles` are the parts of the model found by tracing it; None if its parameters have the op graph's names.
    """
    config = getattr(model, "config", None)
    yield from _config_differences(config, expected) if roles is None else _role_differences(config, roles, expected)
    tied = getattr(config, "tie_word_embeddings", roles.tied if roles is not None else expected.tied)
    if bool(tied) != expected.tied:
        yield f"tie_word_embeddings: {bool(tied)} found, {expected.tied} expected"
    shapes = {n: tuple(p.shape) for n, p in model.named_parameters()}
    names = names_of(roles) if roles is not None else {n: (n,) for n in shapes}
    found = {n: s for n, s in shapes.items() if n in names}
    wanted = _wanted(expected)
    depth = len({ours[0].split(".")[1] for ours in names.values() if ours[0].startswith("layers.")})
    if depth != expected.layers:
        yield f"layers: {depth} found, {expected.layers} expected"
    both = min(depth, expected.layers)
    kept = {n: ours for n, ours in names.items() if _layer(ours[0]) < both}
    held = {name for ours in kept.values() for name in ours}
    lines = [line for n, ours in kept.items() for line in _shape_difference(n, found[n], ours, wanted)]
    missing = [n for n in wanted if _layer(n) < both and n not in held]
    lines += [f"{_starred(n)}: not found, {_shape(wanted[n])} expected" for n in missing]
    yield from dict.fromkeys(lines)


def _shape_difference(name: str, found: Shape, ours: tuple[str, ...], wanted: Mapping[str, Shape]) -> Iterator[str]:
    """Yields a message if the parameter `name` does not have the shape of the plan's parameters `ours`. A fused
    parameter needs as many elements as all of them. The message is the same for every layer."""
    shapes = [wanted[n] for n in ours if n in wanted]
    if len(shapes) < len(ours):
        yield f"{_starred(name)}: {_shape(found)} found, none expected"
    elif len(shapes) > 1 and prod(found) != sum(map(prod, shapes)):
        yield f"{_starred(name)}: {_shape(found)} found, {' and '.join(map(_shape, shapes))} expected"
    elif len(shapes) == 1 and not _same(found, shapes[0], ours[0]):
        yield f"{_starred(name)}: {_shape(found)} found, {_shape(shapes[0])} expected"


def _same(found: Shape, wanted: Shape, name: str) -> bool:
    """True if the shape `found` equals `wanted` or its transpose; expert weights may have their dims in any order."""
    if found[: len(found) - len(wanted)] == (1,):  # a table for all sequences
        return found[1:] == wanted
    return found == wanted or found == wanted[::-1] or (".experts." in name and sorted(found) == sorted(wanted))


def _config_differences(config: Any, expected: Model) -> Iterator[str]:
    for field, dim in CONFIG_SIZES.items():
        value, size = getattr(config, field, None), expected.sizes.get(dim)
        if value is not None and size is not None and value != size:
            yield f"{field}: {value} found, {size} expected"
    picked = getattr(config, "num_experts_per_tok", None)
    if expected.top_k and picked is not None and picked != expected.top_k:
        yield f"num_experts_per_tok: {picked} found, {expected.top_k} expected"


def _role_differences(config: Any, roles: DecoderRoles, expected: Model) -> Iterator[str]:
    """Yields differences in sizes that no parameter's shape shows, such as the number of attention heads."""
    a, routed = heads_of(roles), [b.second for b in roles.blocks if isinstance(b.second, ExpertLayers)]
    found = {"heads": a.heads, "head_dim": a.value_dim or a.head_dim} if a is not None else {}
    found |= {"kv_heads": a.kv_heads} if a is not None and "kv_heads" in expected.sizes else {}
    found |= {"experts": routed[0].experts} if routed else {}
    for dim, value in found.items():
        if (size := expected.sizes.get(dim)) != value:
            name = next((f for f, d in CONFIG_SIZES.items() if d == dim and getattr(config, f, None) == value), dim)
            yield f"{name}: {value} found, {size or 'none'} expected"
    if routed and routed[0].top_k != expected.top_k:
        yield f"experts of a token: {routed[0].top_k} found, {expected.top_k} expected"


def _wanted(expected: Model) -> dict[str, Shape]:
    """Returns the shape of every parameter of the plan's model, for every layer, without LoRA matrices."""
    shapes: dict[str, Shape] = {}
    for param in (p for p in expected.params if not p.name.endswith((LORA_A, LORA_B))):
        layers = [layer for layer, kind in enumerate(expected.kinds) if kind in param.sections]
        for layer in layers or [0]:
            shapes[param.name.replace("*", str(layer))] = expected.shape(param)
    return shapes


def _layer(name: str) -> int:
    """Returns the layer index in a parameter's name; -1 outside the layers."""
    found = re.match(r"layers\.(\d+)\.", name)
    return int(found[1]) if found else -1


def _starred(name: str) -> str:
    return re.sub(r"\blayers\.\d+\.", "layers.*.", name)


def _shape(shape: Shape) -> str:
    return " x ".join(map(str, shape))
