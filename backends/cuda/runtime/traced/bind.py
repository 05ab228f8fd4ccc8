"""A user's module under the names of the op graph, so that a program can divide it; its own code goes on running.

Its blocks, its norms and its linear layers are the same objects with the same weights. Between them its forward runs as
it is, with places that call what lies under the op graph's names, so that a stage of a pipeline may lack some and a
hidden state may be this rank's share of the sequence. A layer that makes several things (queries, keys and values) is
one layer for each, and what they make is joined as it was.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode

from planc.backends.cuda.models.llama import TiedHead
from planc.backends.cuda.runtime.traced.bind_experts import (
    OnTokens,
    activation_of,
    experts_path,
    own_experts,
    put_experts,
    router_of,
)
from planc.backends.cuda.runtime.traced.roles import (
    Attention,
    Block,
    Experts,
    FeedForward,
    Linear,
    Roles,
    UnknownError,
)


class _Done(Exception):  # noqa: N818
    """The rest of the model's forward is not run; `hidden` is what a stage gives."""

    def __init__(self, hidden: Any) -> None:
        self.hidden = hidden


class Bound(nn.Module):
    """Tokens [B, S] to logits [B, S, V]; a stage without an embedding takes hidden states [B, S, D].

    Called as `model(input_ids=..., labels=...)` it returns what the model's own class returns.
    """

    tok_embeddings: Any
    norm: Any
    output: Any

    def __init__(self, model: nn.Module, roles: Roles, sequence_tokens: int) -> None:
        super().__init__()
        self.sequence_tokens, self.tied, self.width = sequence_tokens, roles.tied, roles.embed
        self.more = {"use_cache": False} if hasattr(model, "config") else {}
        self.looks, self.dtype = False, torch.float32
        """True while the model's forward runs only to find what it gives its blocks besides the hidden state."""
        self.given: dict[str, tuple[Any, Any]] = {}
        self.entered: Tensor | None = None
        """The hidden state that a stage was given, until its first block takes it."""
        self.gathers = False
        blocks = model.get_submodule(roles.layers)
        self.layers = nn.ModuleDict({str(i): block for i, block in enumerate(blocks.children())})
        for block, role in zip(self.layers.values(), roles.blocks, strict=True):
            rename_block(block, role, in_place=roles.in_place)
        ends: dict[str, tuple[str, type[_Spot]]]
        ends = {"tok_embeddings": (roles.embedding.rpartition(".")[0], _Embedding)}
        if roles.positions:
            ends["pos_embeddings"] = (roles.positions.rpartition(".")[0], _Positions)
        if roles.embedding_norm:
            ends["embedding_norm"] = (roles.embedding_norm.path, _FirstNorm)
        self.norm = None
        if roles.norm:
            ends["norm"] = (roles.norm.path, _Norm)
        head_path = head_of(model, roles)
        ends["output"] = (head_path, _Head)
        for ours, (path, spot) in ends.items():
            theirs = model.get_submodule(path)
            own = plain_linear(theirs, roles.head) if ours == "output" else theirs
            setattr(self, ours, plain_table(theirs) if ours == "tok_embeddings" else own)
            _put(model, path, spot(self, theirs))
        if roles.tied:
            self.output = TiedHead()
        for number, (name, block) in enumerate(list(self.layers.items())):
            place = _Place(self, block, name)
            place.returns = roles.returns
            _put(model, f"{roles.layers}.{number}", place)
        self.__dict__["model"] = model

    def forward(self, tokens: Any = None, *, input_ids: Any = None, labels: Any = None, **more: Any) -> Any:
        named, self.gathers = input_ids is not None, input_ids is not None
        ids = input_ids if named else tokens
        self.entered = None
        if ids.is_floating_point():
            self.entered = ids
            ids = torch.zeros(len(ids), self.sequence_tokens, dtype=torch.long, device=ids.device)
        self.called_with = (ids, more)
        if self.entered is not None:
            self.look(self.entered.dtype)
        if labels is not None:
            more = {**more, "labels": labels}
        try:
            result = self.__dict__["model"](ids, **self.more, **more)
        except _Done as done:
            return done.hidden
        return result if named else logits_of(result)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Another device or dtype is for tables of angles too, which lie in the model and not under the op graph's
        names."""
        self.__dict__["model"]._apply(fn, recurse)
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def look(self, dtype: torch.dtype) -> None:
        """Run the model's forward without its parts, to find what each block is given besides the hidden state."""
        ids, more = self.called_with
        self.looks, self.dtype, gathers = True, dtype, self.gathers
        try:
            with torch.no_grad():
                self.__dict__["model"](ids, **self.more, **more)
        except _Done:
            pass
        finally:
            self.looks, self.gathers = False, gathers

    def empty(self, batch: int, tokens: int, device: torch.device) -> Tensor:
        """A hidden state of no values that has the shape of the whole sequence's."""
        return torch.zeros((), dtype=self.dtype, device=device).expand(batch, tokens, self.width)


def logits_of(result: Any) -> Tensor:
    """The logits in what a causal model returns."""
    if isinstance(result, Tensor):
        return result
    logits: Tensor = result.logits if hasattr(result, "logits") else next(t for t in result if isinstance(t, Tensor))
    return logits


class _Spot(nn.Module):
    """Stands where a part of the model stood; it has the part's plain attributes, for code that looks at them."""

    def __init__(self, bound: Bound, theirs: nn.Module, name: str = "") -> None:
        super().__init__()
        plain = {k: v for k, v in vars(theirs).items() if not k.startswith("_") and k != "forward"}
        self.__dict__.update({k: v for k, v in plain.items() if k != "training" and not isinstance(v, nn.Module)})
        self.__dict__["bound"], self.name_of_block = bound, name

    @property
    def weight(self) -> Any:
        """The weight of the part, for code that asks for its dtype or device."""
        return self.__dict__["bound"].tok_embeddings.weight


class _Place(_Spot):
    """A block's place."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        bound, name = self.__dict__["bound"], self.name_of_block
        hidden, args, kwargs = _split(args, kwargs)
        if bound.looks:
            bound.given[name] = (args, kwargs)
            return self.shaped(hidden)
        if name not in bound.layers:
            return self.shaped(hidden)
        if bound.entered is not None:
            hidden, bound.entered = bound.entered, None
        args, kwargs = bound.given[name]
        result = bound.layers[name](hidden, *args, **kwargs)
        if name == list(bound.layers)[-1] and bound.output is None:
            raise _Done(result if isinstance(result, Tensor) else result[0])
        return result

    def shaped(self, hidden: Tensor) -> Any:
        """`hidden` as a block returns it."""
        return (hidden, *([None] * (self.returns - 1))) if self.returns else hidden

    returns = 0


def _split(args: Any, kwargs: Any) -> tuple[Tensor, Any, Any]:
    """The hidden state, and the other arguments."""
    if args:
        return args[0], args[1:], kwargs
    key = next(k for k, v in kwargs.items() if isinstance(v, Tensor))
    return kwargs[key], (), {k: v for k, v in kwargs.items() if k != key}


class _Embedding(_Spot):
    """The table's place. A table that scales or norms what it finds is a plain one, with its code behind it."""

    def __init__(self, bound: Bound, theirs: nn.Module) -> None:
        super().__init__(bound, theirs)
        self.own = theirs if _does_more(theirs) else None

    def forward(self, ids: Tensor, *args: Any, **kwargs: Any) -> Any:
        bound = self.__dict__["bound"]
        if bound.looks or bound.tok_embeddings is None:
            return bound.empty(*ids.shape, ids.device)
        hidden = bound.tok_embeddings(ids)
        if self.own is not None:
            self.own.__dict__["weight"] = hidden.new_empty(())
            with _Found(hidden):
                hidden = self.own(ids, *args, **kwargs)
        bound.look(hidden.dtype)
        return hidden


class _Found(TorchFunctionMode):
    """While it is entered, a lookup in a table finds `found`."""

    def __init__(self, found: Tensor) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.found if func is F.embedding else func(*args, **(kwargs or {}))


class _Positions(_Spot):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        bound = self.__dict__["bound"]
        if bound.looks or bound.entered is not None:
            return bound.empty(*bound.called_with[0].shape, bound.called_with[0].device)
        return bound.pos_embeddings(*args, **kwargs)


class _FirstNorm(_Spot):
    def forward(self, hidden: Tensor) -> Any:
        bound = self.__dict__["bound"]
        return hidden if bound.looks or bound.entered is not None else bound.embedding_norm(hidden)


class _Norm(_Spot):
    def forward(self, hidden: Tensor) -> Any:
        bound = self.__dict__["bound"]
        if bound.looks:
            raise _Done(None)
        return bound.norm(hidden)


class _Head(_Spot):
    def forward(self, hidden: Tensor) -> Any:
        bound = self.__dict__["bound"]
        if bound.looks:
            raise _Done(None)
        logits = bound.output(hidden, bound.tok_embeddings.weight) if bound.tied else bound.output(hidden)
        return logits.full_tensor() if bound.gathers and hasattr(logits, "full_tensor") else logits


def _put(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    model.get_submodule(parent)._modules[name] = module


def head_of(model: nn.Module, roles: Roles) -> str:
    """The path of the module that makes the logits; a tied one has the embedding's weight."""
    table = model.get_parameter(roles.embedding)
    if not roles.tied:
        path: str = roles.head.path
        return path
    own = roles.embedding.rpartition(".")[0]
    holders = (p for p, m in model.named_modules() if p != own and any(w is table for w in m._parameters.values()))
    found: str | None = next(holders, None)
    if found is None:
        raise UnknownError(f"{roles.embedding} is its head's weight too, and no module of its own makes the logits")
    return found


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


def plain_table(module: nn.Module) -> nn.Module:
    """`module`, or a table of torch that has its weight now, where its code does more than find rows."""
    if not _does_more(module):
        return module
    weight: Any = module._parameters.pop("weight")
    rows, width = weight.shape
    made = nn.Embedding(rows, width, padding_idx=getattr(module, "padding_idx", None), device="meta")
    made.weight = weight
    return made


def _does_more(table: nn.Module) -> bool:
    """True for an embedding with code of its own around torch's."""
    return isinstance(table, nn.Embedding) and type(table).forward is not nn.Embedding.forward


# Inside a block.


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
    holder, path = holder_of(block, [layer.path for layer in layers], "attention")
    _divide(block, holder, a.q, ("wq", "wk", "wv") if a.k is None else ("wq",), a.rows)
    if a.k is not None and a.v is not None:
        _divide(block, holder, a.k, ("wk",), ())
        _divide(block, holder, a.v, ("wv",), ())
    _divide(block, holder, a.out, ("wo",), ())
    for norm, name in ((a.q_norm, "q_norm"), (a.k_norm, "k_norm")):
        if norm is not None and not (a.k_norm and a.q_norm and a.q_norm.path == a.k_norm.path):
            _move(block, norm.path, holder, name)
    if path:
        _move(block, path, block, "attention")
        holder.register_forward_pre_hook(_OneByPosition(holder), with_kwargs=True)
    holder.get_submodule("wq").register_forward_hook(_Local(holder if path else block, a))


def _rename_experts(block: nn.Module, e: Experts) -> None:
    """The router, the experts and what stands beside them, where planc's experts compute what the class's do."""
    path = experts_path(e)
    holder_path = common_path([path, e.router.path])
    theirs = block.get_submodule(path)
    activation = activation_of(theirs, e)
    if activation is None or not holder_path:
        return
    holder = block.get_submodule(holder_path)
    if e.shared is not None:
        shared = common_path([layer.path for layer in (*e.shared.ups, e.shared.down)])
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
    put_experts(block.get_submodule(parent), name, e.experts, own_experts(theirs, e, activation), holder)
    _move(block, holder_path, block, "moe")


def _take_tokens(block: nn.Module, path: str) -> None:
    """Have the part that was at `path` take tokens [T, D] too."""
    parent, _, name = path.rpartition(".")
    holder = block.get_submodule(parent)
    holder.__dict__[name] = OnTokens(holder.__dict__[name])


def _rename_dense(block: nn.Module, f: FeedForward, parent: nn.Module, own: str) -> None:
    """A feed-forward layer as `own` of `parent`."""
    holder, path = holder_of(block, [layer.path for layer in (*f.ups, f.down)], "feed_forward")
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


def _divide(block: nn.Module, holder: nn.Module, layer: Linear, names: tuple[str, ...], rows: tuple[Any, ...]) -> None:
    """Put a layer under `holder`, as one layer for each of `names`: each has these rows of the weight."""
    theirs, _, old = layer.path.rpartition(".")
    parent = block.get_submodule(theirs)
    whole = plain_linear(block.get_submodule(layer.path), layer)
    if len(names) == 1:
        _leave(parent, old, whole)
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
    _leave(parent, old, _Joined(holder, names, rows))


class _Copied:
    """A layer whose output may be changed in place."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def __call__(self, x: Tensor) -> Any:
        return self.layer(x).clone()


class _Joined:
    """Joins what several layers make, as the one layer made it that they were; of a share of the heads too."""

    def __init__(self, holder: nn.Module, names: tuple[str, ...], rows: tuple[Any, ...]) -> None:
        self.holder, self.names, self.rows = holder, names, rows
        self.orders: dict[tuple[int, ...], Tensor] = {}

    def __call__(self, x: Tensor) -> Tensor:
        parts = [self.holder._modules[name](x) for name in self.names]  # type: ignore[misc]
        widths = tuple(part.shape[-1] for part in parts)
        if widths not in self.orders:
            first = [row for own, width in zip(self.rows, widths, strict=True) for row in own[:width]]
            self.orders[widths] = torch.tensor(first).argsort()
        return torch.cat(parts, dim=-1)[..., self.orders[widths].to(x.device)]


class _Local:
    """Numbers of heads, and widths of all heads together, that an attention's code reads: those of this rank."""

    def __init__(self, holder: nn.Module, a: Attention) -> None:
        self.a, self.done, self.holder = a, False, holder

    def __call__(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        a = self.a
        if self.done:
            return
        self.done = True
        here = output.to_local() if isinstance(output, DTensor) else output
        share = a.heads * a.head_dim // here.shape[-1]
        if share > 1:
            localise(self.holder, a, share)


NOT_OF_ALL_HEADS = ("head_dim", "head_size", "rotary", "layer", "window", "max_", "group")
"""Words in the names of attributes whose value is by chance that of a number of heads."""


def localise(holder: nn.Module, a: Attention, share: int) -> None:
    """Divide the numbers of heads among `holder`'s attributes, and in its own copy of the config, by `share`."""
    width = a.head_dim
    whole = {a.heads, a.kv_heads, a.heads * width, a.kv_heads * width, (a.heads + 2 * a.kv_heads) * width}
    for name, value in list(vars(holder).items()):
        plain = isinstance(value, int) and not isinstance(value, bool)
        if plain and value in whole and not any(word in name for word in NOT_OF_ALL_HEADS):
            holder.__dict__[name] = value // share
    config = getattr(holder, "config", None)
    if config is not None:
        own = copy.copy(config)
        for name in ("num_attention_heads", "num_key_value_heads", "hidden_size"):
            if isinstance(value := getattr(own, name, None), int) and value in whole:
                setattr(own, name, value // share)
        holder.__dict__["config"] = own


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
