"""A block of a user's module under the names of the op graph: its children move, and its code finds them as before."""

from __future__ import annotations

import inspect
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
from planc.backends.cuda.runtime.traced.expert_form import form_of
from planc.backends.cuda.runtime.traced.own_share import KeyLayer, OnShare, OwnArguments, OwnKeys, Scores
from planc.backends.cuda.runtime.traced.roles import Attention, Block, Experts, FeedForward, Linear
from planc.backends.cuda.runtime.traced.stand_in import stand_in


def plain_linear(module: nn.Module, linear: Linear) -> nn.Module:
    """`module` as a layer of torch whose weight is [out, in], with the same weight where it is stored so."""
    if isinstance(module, nn.Linear):
        return module
    weight = getattr(module, linear.weight.rpartition(".")[2])
    bias = getattr(module, linear.bias.rpartition(".")[2]) if linear.bias else None
    made = nn.Linear(linear.taken, linear.made, bias=bias is not None, device="meta", dtype=weight.dtype)
    made.weight = nn.Parameter(weight.detach().T.contiguous()) if linear.transposed else weight
    if bias is not None:
        made.bias = bias
    return made


def rename_block(block: nn.Module, role: Block, *, in_place: bool = False) -> None:
    """Children of a block under the op graph's names; their own code finds them where they were.

    Where that changes tensors `in_place` it is given copies of what layers make whose parts are summed over ranks.
    """
    _rename_attention(block, role.attention)
    second = role.second
    shares = second.parallel and second.before is not None and second.before == role.attention.before
    if second.before is not None and not shares:
        _move(block, second.before.path, block, "ffn_norm")
    if second.after is not None:
        _move(block, second.after.path, block, "ffn_post_norm")
    if isinstance(second, FeedForward):
        _rename_dense(block, second, block, "feed_forward")
    else:
        _rename_experts(block, second)
    if in_place:
        outs = [(block.get_submodule("attention"), role.attention.out)]
        outs += [(block.get_submodule("feed_forward"), second.down)] if isinstance(second, FeedForward) else []
        for holder, layer in outs:
            old = layer.path.rpartition(".")[2]
            parent = next((m for m in (holder, block) if old in m.__dict__), None)
            if parent is not None:
                parent.__dict__[old] = _Copied(parent.__dict__[old])


def _rename_attention(block: nn.Module, a: Attention) -> None:
    if a.before is not None:
        _move(block, a.before.path, block, "attention_norm")
    if a.after is not None:
        _move(block, a.after.path, block, "attention_post_norm")
    layers = [a.q, a.out, *([a.k, a.v] if a.k is not None and a.v is not None else [])]
    holder, path = holder_of(block, [layer.place for layer in layers], "attention")
    if a.keys_whole:
        holder._modules["core"] = OwnKeys()
    _divide(block, holder, a.q, ("wq", "wk", "wv") if a.k is None else ("wq",), a.rows, a)
    if a.k is not None and a.v is not None:
        _divide(block, holder, a.k, ("wk",), (), a)
        _divide(block, holder, a.v, ("wv",), (), a)
    _divide(block, holder, a.out, ("wo",), ())
    for norm, name in ((a.q_norm, "q_norm"), (a.k_norm, "k_norm")):
        if norm is not None and not (a.k_norm and a.q_norm and a.q_norm.path == a.k_norm.path):
            _move(block, norm.path, holder, name)
    if a.sinks:
        _put_scores(block, a.sinks, holder)
    if path:
        _move(block, path, block, "attention")
        holder.register_forward_pre_hook(_OneByPosition(holder), with_kwargs=True)
    (holder if path else block).register_forward_pre_hook(OnShare(holder, a))
    if a.by_heads:
        block.register_forward_pre_hook(OwnArguments(holder, a), with_kwargs=True)


def _put_scores(block: nn.Module, path: str, holder: nn.Module) -> None:
    """Put the parameter at `path`, a score for each head, under `holder`; the code finds that of its rank's heads."""
    where, _, name = path.rpartition(".")
    owner = block.get_submodule(where)
    scores: Any = owner._parameters.pop(name)
    holder._modules["head_sinks"] = Scores(scores)
    owner.__dict__[name] = stand_in(tuple(scores.shape), value=holder._modules["head_sinks"])


def _rename_experts(block: nn.Module, e: Experts) -> None:
    """The router, the experts and what stands beside them, where planc's experts compute what the class's do."""
    path = experts_path(e)
    holder_path = common_path([path, e.router.path])
    theirs = block.get_submodule(path)
    form = form_of(theirs, e)
    if form is None or not holder_path:
        return
    holder = block.get_submodule(holder_path)
    if e.shared is not None:
        shared = common_path([layer.place for layer in (*e.shared.ups, e.shared.down)])
        _rename_dense(block, e.shared, holder, "shared")
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
    """Have the part that was at `path` take tokens [T, D] too."""
    parent, _, name = path.rpartition(".")
    holder = block.get_submodule(parent)
    holder.__dict__[name] = OnTokens(holder.__dict__[name])


def _rename_dense(block: nn.Module, f: FeedForward, parent: nn.Module, own: str) -> None:
    """A feed-forward layer as `own` of `parent`."""
    holder, path = holder_of(block, [layer.place for layer in (*f.ups, f.down)], "feed_forward")
    if f.fused:
        _divide(block, holder, f.ups[0], ("w1", "w3"), f.rows)
    else:
        for layer, name in zip(f.ups, ("w1", "w3"), strict=False):
            _divide(block, holder, layer, (name,), ())
    _divide(block, holder, f.down, ("w2",), ())
    if path:
        _move(block, path, parent, own)
        holder.register_forward_pre_hook(_OneByPosition(holder), with_kwargs=True)


def common_path(paths: list[str]) -> str:
    """The path of the innermost module that has the layers at `paths`; "" where they lie in the block itself."""
    common = []
    for words in zip(*(p.split(".")[:-1] for p in paths), strict=False):
        if len(set(words)) > 1:
            break
        common.append(words[0])
    return ".".join(common)


def holder_of(block: nn.Module, paths: list[str], name: str) -> tuple[nn.Module, str]:
    """The innermost module of `block` that has the layers at `paths`, and its path.

    Where that is the block itself it is a new module, `name`.
    """
    path = common_path(paths)
    if path:
        return block.get_submodule(path), path
    holder = nn.Module()
    block._modules[name] = holder
    return holder, ""


def _move(block: nn.Module, path: str, parent: nn.Module, name: str) -> None:
    """Put the module at `path` under `parent` as `name`; where it was, it is found as a plain attribute."""
    theirs, _, old = path.rpartition(".")
    before = block.get_submodule(theirs)
    child = before._modules[old]
    assert child is not None, path
    _leave(before, old, child)
    parent._modules[name] = child


def _leave(parent: nn.Module, name: str, stays: Any) -> None:
    """`stays` is found at `parent.name`, without being its child."""
    if isinstance(parent, nn.Sequential | nn.ModuleList | nn.ModuleDict):
        parent._modules[name] = _Through(stays)
    else:
        parent._modules.pop(name)
        parent.__dict__[name] = stays


class _Through(nn.Module):
    """Calls a module that lies elsewhere."""

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
    a: Attention | None = None,
) -> None:
    """Put a layer under `holder`, as one layer for each of `names`: each has these rows of the weight. `a` is the
    attention that it is of."""
    whole = plain_linear(block.get_submodule(layer.path), layer)
    called = {name: KeyLayer(holder, name, a) for name in ("wk", "wv") if a is not None and a.keys_whole}
    if len(names) == 1:
        _put_layer(block, layer, called.get(names[0], whole))
        holder._modules[names[0]] = whole
        return
    weight, bias = whole.weight, whole.bias
    assert isinstance(weight, Tensor)
    for name, own in zip(names, rows, strict=True):
        index = torch.tensor(own, device=weight.device)
        part = nn.Linear(layer.taken, len(own), bias=bias is not None, device="meta", dtype=weight.dtype)
        part.weight = nn.Parameter(weight.detach()[index])
        if isinstance(bias, Tensor):
            part.bias = nn.Parameter(bias.detach()[index])
        holder._modules[name] = part
    calls = [called.get(name, _Named(holder, name)) for name in names]
    _put_layer(block, layer, _Joined(calls, rows, a.rows_here if a is not None else ()))


def _put_layer(block: nn.Module, layer: Linear, made: Any) -> None:
    """Have the block's code call `made` where it had `layer`, or the layer's weight in a module that does more."""
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
    """A layer whose output may be changed in place."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def __call__(self, x: Tensor) -> Any:
        return self.layer(x).clone()


class _Named:
    """Calls a layer by its name in `holder`, whatever stands there by then."""

    def __init__(self, holder: nn.Module, name: str) -> None:
        self.holder, self.name = holder, name

    def __call__(self, x: Tensor) -> Any:
        return self.holder._modules[self.name](x)  # type: ignore[misc]


class _Joined:
    """Joins what several layers make, as the one layer made it that they were; of a share of the heads too."""

    def __init__(self, layers: list[Any], rows: tuple[Any, ...], here: tuple[Any, ...]) -> None:
        """`here` are the rows of a share, where they lie otherwise than in the whole."""
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
    """Gives a module's hidden state by position and all else by name: torch's parallel styles take what is given by
    position as what they divide."""

    def __init__(self, module: nn.Module) -> None:
        self.names = [n for n, p in inspect.signature(module.forward).parameters.items() if p.kind in NAMED]

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        if not args:
            return (kwargs.pop(self.names[0]),), kwargs
        return args[:1], {**dict(zip(self.names[1:], args[1:], strict=False)), **kwargs}


NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
