"""Renames the parts of a user's block to the op graph's names. The block's code finds them under their old names."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from planc.backends.cuda.runtime.traced.bind_experts import (
    OnTokens,
    experts_path,
    own_experts,
    put_experts,
    router_of,
)
from planc.backends.cuda.runtime.traced.copied import copied
from planc.backends.cuda.runtime.traced.entrance import Entered, Entrance, ForWhole
from planc.backends.cuda.runtime.traced.expert_form import form_of
from planc.backends.cuda.runtime.traced.free_names import name_in_code, part_at, with_free_names
from planc.backends.cuda.runtime.traced.latents import AsWhole, Down, OnOwn, SharedKey, ToHeads, own_of
from planc.backends.cuda.runtime.traced.names import CHANNELS, MIXER
from planc.backends.cuda.runtime.traced.own_share import KeyLayer, OnShare, OwnArguments, OwnKeys, Scores
from planc.backends.cuda.runtime.traced.roles import (
    AttentionLayers,
    BlockLayers,
    Code,
    DecoderRoles,
    ExpertLayers,
    FeedForwardLayers,
    Latent,
    Linear,
    Norm,
    UnknownError,
)
from planc.backends.cuda.runtime.traced.stand_in import stand_in


def plain_linear(module: nn.Module, linear: Linear) -> nn.Module:
    """Returns the layer `linear` of `module` as an nn.Linear: `module` itself if that is one, else a new layer. The new
    layer shares the weight, or copies it if it is stored transposed."""
    if isinstance(module, nn.Linear):
        return module
    weight = getattr(module, linear.weight.rpartition(".")[2])
    bias = getattr(module, linear.bias.rpartition(".")[2]) if linear.bias else None
    made = nn.Linear(linear.taken, linear.made, bias=bias is not None, device="meta", dtype=weight.dtype)
    made.weight = copied(weight.detach().T, weight.detach().T.contiguous()) if linear.transposed else weight
    if bias is not None:
        made.bias = bias
    return made


def bound_block(block: nn.Module, role: BlockLayers, tokens: Callable[[], int], roles: DecoderRoles) -> nn.Module:
    """Returns `block` with its children renamed to the op graph's names. `role` says what each child computes, and
    `roles` is the same for the whole model. The block's own code finds the children under their old names, as plain
    attributes. A block that planc cannot split is wrapped in a WholeBlock instead.

    `tokens` returns the number of tokens of a full sequence.
    """
    if role.is_whole:
        return WholeBlock(block, role.code[0])
    role = with_free_names(block, role)
    a, second = role.attention, role.second
    shares = second is not None and second.parallel and a is not None and second.before == a.before is not None
    if a is not None:
        _rename_norm(block, a.before, "attention_norm", places_of(a), tokens)
    if second is not None and not shares:
        _rename_norm(block, second.before, "ffn_norm", places_of(second), tokens)
    for half, name in ((a, "attention_post_norm"), (second, "ffn_post_norm")):
        if half is not None and half.after is not None:
            _move_norm(block, half.after, block, name)
    if isinstance(a, Code):
        _put_code(block, a, MIXER)
    elif a is not None:
        _rename_attention(block, a, tokens)
    if isinstance(second, Code):
        _put_code(block, second, CHANNELS)
    elif isinstance(second, FeedForwardLayers):
        _rename_dense(block, second, block, "feed_forward", tokens)
    elif second is not None:
        _rename_experts(block, second, tokens)
    if roles.in_place:
        _copy_sums(block, role)
    return block


def _copy_sums(block: nn.Module, role: BlockLayers) -> None:
    """Makes layers return copies of their outputs where tensor parallelism sums these, because the block's code changes
    tensors in place."""
    outs = [(part_at(block, "attention"), role.heads.out)] if role.heads is not None else []
    if isinstance(role.second, FeedForwardLayers):
        outs.append((part_at(block, "feed_forward"), role.second.down))
    for holder, layer in outs:
        old = name_in_code(layer.path.rpartition(".")[2])
        parent = next((m for m in (holder, block) if old in m.__dict__), None)
        if parent is not None:
            parent.__dict__[old] = _Copied(parent.__dict__[old])


def _put_code(block: nn.Module, code: Code, name: str) -> None:
    """Renames half a block that planc does not shard to `name`; its parameters keep their names."""
    module = block.get_submodule(code.path)
    _move(block, code.path, block, name, called=AndBeside if code.returns else None)
    module.register_forward_pre_hook(_OneByPosition(module), with_kwargs=True)


class WholeBlock(nn.Module):
    """Wraps a block that planc does not shard; it maps hidden states to hidden states."""

    def __init__(self, block: nn.Module, code: Code) -> None:
        super().__init__()
        self._modules[MIXER] = block
        self.__dict__["called"] = AndBeside(block) if code.returns else block
        block.register_forward_pre_hook(_OneByPosition(block), with_kwargs=True)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["called"](*args, **kwargs)


class AndBeside:
    """Calls a module that returns a tuple (hidden state first). Hooks of the module see only the hidden state; the
    caller gets the tuple."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.beside: tuple[Any, ...] = ()
        module.register_forward_hook(self._alone)

    def _alone(self, module: nn.Module, args: Any, made: Any) -> Any:
        hidden, *beside = made
        self.beside = tuple(beside)
        return hidden

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (self.module(*args, **kwargs), *self.beside)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["module"], name)


def _rename_attention(block: nn.Module, a: AttentionLayers, tokens: Callable[[], int]) -> None:
    holder, path = holder_of(block, places_of(a), "attention", a.before)
    if a.latent is not None:
        _divide_latents(block, holder, a, a.latent)
    else:
        _divide_heads(block, holder, a)
    _divide(block, holder, a.out, ("wo",), ())
    if a.sinks:
        _put_scores(block, a.sinks, holder)
    outer = _put_half(block, path, block, "attention", holder, tokens)
    if path and a.latent is not None:
        holder.register_forward_pre_hook(AsWhole(tokens))
    outer.register_forward_pre_hook(OnShare(holder, a))
    if a.by_heads:
        block.register_forward_pre_hook(OwnArguments(holder, a), with_kwargs=True)


def _divide_latents(block: nn.Module, holder: nn.Module, a: AttentionLayers, latent: Latent) -> None:
    """Moves the layers and norms of latent attention to `holder`; layers with several outputs are split."""
    if latent.q_up is not None and latent.q_norm is not None:
        _put_layer(block, a.q, OnOwn(_named(block, holder, a.q, "wq_a")))
        _move_norm(block, latent.q_norm, holder, "q_norm", called=OnOwn)
        _put_layer(block, latent.q_up, ToHeads(_named(block, holder, latent.q_up, "wq_b")))
    else:
        _put_layer(block, a.q, ToHeads(_named(block, holder, a.q, "wq")))
    holder._modules["keys"] = SharedKey()
    _parts_of(block, holder, latent.kv_down, ("wkv_a", "wk_rope"), latent.down_rows)
    _put_layer(block, latent.kv_down, Down(holder, latent.down_rows))
    _move_norm(block, latent.kv_norm, holder, "kv_norm", called=OnOwn)
    names = ("wk_b", "wv_b")
    _parts_of(block, holder, latent.kv_up, names, latent.up_rows)
    joined = _JoinedLayers([_Named(holder, name) for name in names], latent.up_rows, ())
    _put_layer(block, latent.kv_up, ToHeads(joined))


def _divide_heads(block: nn.Module, holder: nn.Module, a: AttentionLayers) -> None:
    """Moves the layers of queries, keys and values, and their norms, to `holder`; a fused layer is split."""
    if a.keys_whole:
        holder._modules["core"] = OwnKeys()
    _divide(block, holder, a.q, ("wq", "wk", "wv") if a.k is None else ("wq",), a.rows, a, enters=True)
    if a.k is not None and a.v is not None:
        _divide(block, holder, a.k, ("wk",), (), a, enters=True)
        _divide(block, holder, a.v, ("wv",), (), a, enters=True)
    for norm, name in ((a.q_norm, "q_norm"), (a.k_norm, "k_norm")):
        if norm is not None and not (a.k_norm and a.q_norm and a.q_norm.path == a.k_norm.path):
            _move_norm(block, norm, holder, name)


def _put_scores(block: nn.Module, path: str, holder: nn.Module) -> None:
    """Moves the parameter at `path`, one attention score per head (a sink), to `holder`. The block's code finds the
    local heads' scores under the old name."""
    where, _, name = path.rpartition(".")
    owner = block.get_submodule(where)
    scores: Any = owner._parameters.pop(name)
    holder._modules["head_sinks"] = Scores(scores)
    owner.__dict__[name] = stand_in(tuple(scores.shape), value=holder._modules["head_sinks"])


def _rename_experts(block: nn.Module, e: ExpertLayers, tokens: Callable[[], int]) -> None:
    """Renames the router, the experts and the shared expert of a block. Does nothing if planc's experts would compute
    something else than the user's, or if no module inside the block contains both router and experts."""
    path = experts_path(e)
    holder_path = common_path([path, e.router.path])
    theirs = block.get_submodule(path)
    form = form_of(theirs, e)
    if form is None or not holder_path:
        return
    holder = block.get_submodule(holder_path)
    if e.shared is not None:
        shared = common_path([layer.place for layer in (*e.shared.ups, e.shared.down)])
        _rename_dense(block, e.shared, holder, "shared", tokens)
        if shared:
            _take_tokens(block, shared)
    if e.shared_gate is not None:
        _divide(block, holder, e.shared_gate, ("shared_gate",), ())
        _take_tokens(block, e.shared_gate.path)
    router = block.get_submodule(e.router.path)
    layer = router_of(router, e.router)
    parent, _, name = e.router.path.rpartition(".")
    if layer is router or (parent == holder_path and name == "router"):
        _leave(block.get_submodule(parent), name, OnTokens(router) if layer is router else router)
    if layer is not router and parent == holder_path and name == "router":
        holder._modules["picks"] = router
    holder._modules["router"] = layer
    parent, _, name = path.rpartition(".")
    put_experts(block.get_submodule(parent), name, e.experts, own_experts(theirs, e, form), holder)
    _move(block, holder_path, block, "moe")


def _take_tokens(block: nn.Module, path: str) -> None:
    """Makes the module at `path`, as the block's code calls it, also accept flattened tokens [T, D]."""
    parent, _, name = path.rpartition(".")
    holder, name = block.get_submodule(parent), name_in_code(name)
    holder.__dict__[name] = OnTokens(holder.__dict__[name])


def _rename_dense(
    block: nn.Module, f: FeedForwardLayers, parent: nn.Module, own: str, tokens: Callable[[], int]
) -> None:
    """Moves the module of a feed-forward layer to `parent` as `own`, and renames its linear layers to w1, w2 and w3."""
    holder, path = holder_of(block, places_of(f), own, f.before)
    if f.fused:
        _divide(block, holder, f.ups[0], ("w1", "w3"), f.rows, enters=True)
    else:
        for layer, name in zip(f.ups, ("w1", "w3"), strict=False):
            _divide(block, holder, layer, (name,), (), enters=True)
    _divide(block, holder, f.down, ("w2",), ())
    _put_half(block, path, parent, own, holder, tokens)


def _put_half(
    block: nn.Module, path: str, parent: nn.Module, name: str, holder: nn.Module, tokens: Callable[[], int]
) -> nn.Module:
    """Moves `holder`, the module with the layers of attention or MLP, to `parent` as `name`. Returns the module whose
    code calls these layers: `holder`, or if that is an Entrance, the module at `path`."""
    if isinstance(holder, Entrance):
        outer = block.get_submodule(path)
        parent._modules[name] = holder
        if path:
            outer.register_forward_pre_hook(_OneByPosition(outer), with_kwargs=True)
            outer.register_forward_pre_hook(AsWhole(tokens))
        return outer
    _move(block, path, parent, name, own=holder)
    holder.register_forward_pre_hook(_OneByPosition(holder), with_kwargs=True)
    return holder


def rename_params(module: nn.Module, norm: Norm) -> None:
    """Renames a norm's parameters to `weight` and `bias`; the code of `module` finds them under their old names."""
    for (path, _), ours in zip(norm.params, ("weight", "bias"), strict=False):
        name = path.rpartition(".")[2]
        if name == ours or path != f"{norm.path}.{name}".lstrip("."):
            continue
        parameter = module._parameters.pop(name)
        assert parameter is not None and ours not in module._parameters, path
        module._parameters[ours] = parameter
        module.__dict__[name] = stand_in(tuple(parameter.shape), value=_Own(module, ours))


class _Own:
    """A callable that returns the current parameter `name` of a module."""

    def __init__(self, module: nn.Module, name: str) -> None:
        self.module, self.name = module, name

    def __call__(self) -> Any:
        return self.module._parameters[self.name]


def _rename_norm(block: nn.Module, norm: Norm | None, name: str, places: list[str], tokens: Callable[[], int]) -> None:
    """Renames the norm before attention or MLP to `name`. `places` are the paths of the layers after it."""
    if norm is None:
        return
    called: Any = None
    if not (path := common_path(places)):
        called = partial(ForWhole, tokens=tokens)
    elif norm.path.startswith(f"{path}."):
        called = OnOwn
    _move_norm(block, norm, block, name, called=called)


def _move_norm(block: nn.Module, norm: Norm, parent: nn.Module, name: str, called: Any = None) -> None:
    rename_params(block.get_submodule(norm.path), norm)
    _move(block, norm.path, parent, name, called=called)


def places_of(half: AttentionLayers | FeedForwardLayers | ExpertLayers | Code) -> list[str]:
    """Returns the paths of the layers of attention, MLP or experts (`half`); all expert weights have one path."""
    if isinstance(half, Code):
        return [f"{half.path}.code"]
    if isinstance(half, ExpertLayers):
        return [half.router.place, f"{experts_path(half)}.weight"]
    if isinstance(half, FeedForwardLayers):
        return [layer.place for layer in (*half.ups, half.down)]
    return [layer.place for layer in (half.q, half.k, half.v, half.out) if layer is not None]


def common_path(paths: list[str]) -> str:
    """Returns the path of the innermost module that contains all `paths`; "" for the block itself."""
    common = []
    for words in zip(*(p.split(".")[:-1] for p in paths), strict=False):
        if len(set(words)) > 1:
            break
        common.append(words[0])
    return ".".join(common)


def holder_of(block: nn.Module, places: list[str], name: str, norm: Norm | None) -> tuple[nn.Module, str]:
    """Returns the innermost module of `block` that contains all layers at the paths `places`, and its path. The caller
    will register it as `name`.

    If it is the block itself, or contains the `norm` before the layers too, an Entrance is returned in its place.
    Raises UnknownError if the block has another child called `name`.
    """
    path = common_path(places)
    if not path or (norm is not None and norm.path.startswith(f"{path}.")):
        if name in block._modules and name != path:
            raise UnknownError(f"{name} is a part of its block that is something else")
        return Entrance(), path
    found = block.get_submodule(path)
    return (Around(found) if isinstance(found, nn.Sequential) else found), path


def _move(
    block: nn.Module, path: str, parent: nn.Module, name: str, called: Any = None, own: nn.Module | None = None
) -> None:
    """Moves the module at `path`, or its replacement `own`, to `parent` as `name`. The block's code finds it under the
    old path as a plain attribute, wrapped by `called` if that is given."""
    theirs, _, old = path.rpartition(".")
    before = block.get_submodule(theirs)
    child = before._modules[old] if own is None else own
    assert child is not None, path
    _leave(before, old, child if called is None else called(child))
    parent._modules[name] = child


def _leave(parent: nn.Module, name: str, stays: Any) -> None:
    """Makes `stays` the attribute `parent.name` in place of a child module."""
    if isinstance(parent, nn.Sequential | nn.ModuleList | nn.ModuleDict):
        parent._modules[name] = _Through(stays)
    else:
        parent._modules.pop(name)
        parent.__dict__[name_in_code(name)] = stays


class Around(nn.Module):
    """Wraps an nn.Sequential, so that its layers can be registered beside it and not run twice."""

    def __init__(self, steps: nn.Sequential) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, x: Any) -> Any:
        return self.steps(x)


class _Through(nn.Module):
    """Calls a module that is registered elsewhere in the model."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.__dict__["module"] = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["module"](*args, **kwargs)


def _divide(
    block: nn.Module,
    holder: nn.Module,
    layer: Linear,
    names: tuple[str, ...],
    rows: tuple[Any, ...],
    a: AttentionLayers | None = None,
    *,
    enters: bool = False,
) -> None:
    """Moves `layer` to `holder`, split into one layer per name in `names`, each with its `rows` of the weight. `a`
    is the attention of the layer, if it belongs to one; `enters` is True if the layer reads the input of attention
    or MLP."""
    called = {name: KeyLayer(holder, name, a) for name in ("wk", "wv") if a is not None and a.keys_whole}
    made: Any
    if len(names) == 1:
        made = called.get(names[0], _named(block, holder, layer, names[0]))
    else:
        _parts_of(block, holder, layer, names, rows)
        calls = [called.get(name, _Named(holder, name)) for name in names]
        made = _JoinedLayers(calls, rows, a.rows_here if a is not None else ())
    _put_layer(block, layer, Entered(holder, made) if enters and isinstance(holder, Entrance) else made)


def _named(block: nn.Module, holder: nn.Module, layer: Linear, name: str) -> nn.Module:
    """Registers a layer of `block` as an nn.Linear called `name` in `holder`."""
    whole = plain_linear(block.get_submodule(layer.path), layer)
    holder._modules[name] = whole
    return whole


def _parts_of(
    block: nn.Module, holder: nn.Module, layer: Linear, names: tuple[str, ...], rows: tuple[Any, ...]
) -> None:
    """Splits a layer of `block` into several nn.Linear in `holder`: each name gets its `rows` of the weight."""
    whole = plain_linear(block.get_submodule(layer.path), layer)
    weight, bias = whole.weight, whole.bias
    assert isinstance(weight, Tensor)
    for name, own in zip(names, rows, strict=True):
        index = torch.tensor(own, device=weight.device)
        part = nn.Linear(layer.taken, len(own), bias=bias is not None, device="meta", dtype=weight.dtype)
        part.weight = copied(weight, weight.detach()[index], index)
        if isinstance(bias, Tensor):
            part.bias = copied(bias, bias.detach()[index], index)
        holder._modules[name] = part


def _put_layer(block: nn.Module, layer: Linear, made: Any) -> None:
    """Makes the block's code call `made` in place of `layer`: as a module, or if the user's module does more than the
    matmul, wherever it multiplies by the weight."""
    if layer.alone:
        theirs, _, old = layer.path.rpartition(".")
        _leave(block.get_submodule(theirs), old, made)
        return
    owner = block.get_submodule(layer.path)
    for path in filter(None, (layer.weight, layer.bias)):
        name = path.rpartition(".")[2]
        weight: Any = owner._parameters.pop(name)
        owner.__dict__[name] = stand_in(tuple(weight.shape), layer=made) if path == layer.weight else None


class _Copied:
    """Calls a layer and returns a copy of its output, because the code changes the output in place."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def __call__(self, x: Tensor) -> Any:
        return self.layer(x).clone()


class _Named:
    """Calls the current child `name` of `holder`, which parallelization may replace."""

    def __init__(self, holder: nn.Module, name: str) -> None:
        self.holder, self.name = holder, name

    def __call__(self, x: Tensor) -> Any:
        return self.holder._modules[self.name](x)  # type: ignore[misc]


class _JoinedLayers:
    """Calls the layers that one fused layer was split into, and concatenates their outputs in the order of the fused
    layer's rows, also if each has only local heads."""

    def __init__(self, layers: list[Any], rows: tuple[Any, ...], here: tuple[Any, ...]) -> None:
        """`here` are the rows for local heads, if the code wants another order for them than for all heads."""
        self.layers, self.rows, self.here = layers, rows, here
        self.orders: dict[tuple[int, ...], Tensor] = {}

    def __call__(self, x: Tensor) -> Tensor:
        parts = [layer(x) for layer in self.layers]
        widths = tuple(part.shape[-1] for part in parts)
        if widths not in self.orders:
            rows = self.here if widths == tuple(map(len, self.here)) else self.rows
            first = [row for own, width in zip(rows, widths, strict=True) for row in own[:width]]
            self.orders[widths] = torch.tensor(first).argsort()
        return torch.cat(parts, dim=-1)[..., self.orders[widths].to(x.device)]


class _OneByPosition:
    """A pre-hook that passes the hidden state by position and all other arguments by name: torch's parallel styles
    convert positional inputs only."""

    def __init__(self, module: nn.Module) -> None:
        self.names = [n for n, p in inspect.signature(module.forward).parameters.items() if p.kind in NAMED]

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        if not args:
            return (own_of(kwargs.pop(self.names[0])),), kwargs
        return (own_of(args[0]),), {**dict(zip(self.names[1:], args[1:], strict=False)), **kwargs}


NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
