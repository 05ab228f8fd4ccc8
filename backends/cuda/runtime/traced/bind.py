"""Renames the parts of a user's module to the op graph's names, so that a program can shard them. The module's own code
still runs.

Blocks, norms and linear layers keep their objects and weights. The forward of the module runs unchanged and calls them
through placeholders, so that a pipeline stage may lack some of them, and hidden states may be sharded over the
sequence. A fused layer (queries, keys and values) is split into one layer each, and their outputs are concatenated.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from planc.backends.cuda.models.llama import TiedHead
from planc.backends.cuda.runtime.traced.bind_block import bound_block, plain_linear, rename_params
from planc.backends.cuda.runtime.traced.loops import with_blocks
from planc.backends.cuda.runtime.traced.own_share import split
from planc.backends.cuda.runtime.traced.roles import DecoderRoles, UnknownError
from planc.backends.cuda.runtime.traced.stand_in import stand_in


class _Done(Exception):  # noqa: N818
    """Raised to end the model's forward early, with the output `hidden` of the pipeline stage."""

    def __init__(self, hidden: Any) -> None:
        self.hidden = hidden


class BoundModel(nn.Module):
    """Maps tokens [B, S] to logits [B, S, V]; a pipeline stage without an embedding takes hidden states [B, S, D].

    Called as `model(input_ids=..., labels=...)` it returns the output of the user's own class.
    """

    tok_embeddings: Any
    norm: Any
    output: Any

    def __init__(self, model: nn.Module, roles: DecoderRoles, sequence_tokens: int) -> None:
        super().__init__()
        self.sequence_tokens, self.tied, self.width, self.rows = sequence_tokens, roles.tied, roles.embed, roles.vocab
        self.more = {"use_cache": False} if hasattr(model, "config") else {}
        self.looks, self.dtype = False, torch.float32
        """True during a run of the model's forward that only finds the blocks' arguments besides the hidden state."""
        self.given: dict[str, tuple[Any, Any]] = {}
        self.entered: Tensor | None = None
        """The hidden state that a stage received, until its first block takes it."""
        self.gathers = False
        with_blocks(model, roles.loop)
        head_path, blocks = head_of(model, roles), model.get_submodule(roles.layers)
        bound_blocks = [
            bound_block(b, r, self.tokens, roles) for b, r in zip(blocks.children(), roles.blocks, strict=True)
        ]
        self.layers = nn.ModuleDict({str(i): block for i, block in enumerate(bound_blocks)})
        ends: dict[str, tuple[str, type[_Spot]]]
        ends = {} if roles.raw_table else {"tok_embeddings": (roles.embedding.rpartition(".")[0], _Embedding)}
        if roles.raw_table:
            path, _, name = roles.embedding.rpartition(".")
            owner = model.get_submodule(path)
            self.tok_embeddings, shape = _table_of(owner, name)
            owner.__dict__[name] = stand_in(shape, rows=_Rows(self, None))
        if roles.positions:
            path, _, name = roles.positions.rpartition(".")
            if isinstance(model.get_submodule(path), nn.Embedding):
                ends["pos_embeddings"] = (path, _Positions)
            else:
                self._take_positions(model.get_submodule(path), name)
        if roles.embedding_norm:
            ends["embedding_norm"] = (roles.embedding_norm.path, _FirstNorm)
        self.norm, self.behind = None, False
        if roles.norm and roles.embedding_norm and roles.norm.path == roles.embedding_norm.path:
            ends["embedding_norm"] = (roles.norm.path, _NormOfBothEnds)
            self.norm = copy.deepcopy(model.get_submodule(roles.norm.path))
        elif roles.norm:
            ends["norm"] = (roles.norm.path, _NormSpot)
        self.heads = None if head_path else _HeadCall(self)
        if head_path:
            ends["output"] = (head_path, _Head)
        tied_bias = model.get_parameter(roles.head.bias) if roles.tied and roles.head.bias else None
        for norm in filter(None, {roles.norm, roles.embedding_norm}):
            rename_params(model.get_submodule(norm.path), norm)
        for ours, (path, spot) in ends.items():
            theirs = model.get_submodule(path)
            own = plain_linear(theirs, roles.head) if ours == "output" else theirs
            setattr(self, ours, plain_table(theirs) if ours == "tok_embeddings" else own)
            _put(model, path, spot(self, theirs))
        if roles.tied:
            self.output = TiedHead() if tied_bias is None else _BiasedTiedHead(tied_bias)
        if tied_bias is not None:
            path, _, name = roles.head.bias.rpartition(".")
            owner = model.get_submodule(path)
            owner._parameters.pop(name, None)
            owner.__dict__[name] = None
        for number, (name, block) in enumerate(list(self.layers.items())):
            place = _BlockSpot(self, block, name)
            place.returns, place.is_last = roles.returns, number == len(roles.blocks) - 1
            _put(model, f"{roles.layers}.{number}", place)
        self.__dict__["model"] = model

    def forward(self, tokens: Any = None, *, input_ids: Any = None, labels: Any = None, **more: Any) -> Any:
        named, self.gathers = input_ids is not None, input_ids is not None
        self.behind = False
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

    def tokens(self) -> int:
        """Returns the number of tokens per sequence in the last call."""
        return int(self.called_with[0].shape[1])

    def _take_positions(self, owner: nn.Module, name: str) -> None:
        """Moves the parameter `name` of `owner`, a table that the code adds to the embedding, to `pos_embeddings`. The
        code finds the table under its old name."""
        self.pos_embeddings, shape = _table_of(owner, name)
        owner.__dict__[name] = stand_in(shape, value=_Table(self, shape))

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Applies `fn` (a cast or a move to a device) also to tensors that are not in the op graph, such as rotary
        tables."""
        self.__dict__["model"]._apply(fn, recurse)
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def look(self, dtype: torch.dtype) -> None:
        """Runs the model's forward with its blocks and layers skipped, to find the arguments (masks, rotary tables)
        that each block gets besides the hidden state. Hidden states in this run have `dtype`."""
        ids, more = self.called_with
        self.looks, self.dtype, gathers = True, dtype, self.gathers
        self.behind = False
        try:
            with torch.no_grad():
                self.__dict__["model"](ids, **self.more, **more)
        except _Done:
            pass
        finally:
            self.looks, self.gathers, self.behind = False, gathers, False

    def empty(self, batch: int, tokens: int, device: torch.device) -> Tensor:
        """Returns hidden states of zeros for the full sequence, [batch, tokens, embed]."""
        return torch.zeros((), dtype=self.dtype, device=device).expand(batch, tokens, self.width)


def _table_of(owner: nn.Module, name: str) -> tuple[nn.Embedding, tuple[int, ...]]:
    """Returns the parameter `name` of `owner` as an nn.Embedding, and the shape of the parameter."""
    weight: Any = owner._parameters.pop(name)
    rows, width = weight.shape[-2:]
    table = nn.Embedding(rows, width, device="meta")
    table.weight = nn.Parameter(weight.detach().view(rows, width))
    return table, tuple(weight.shape)


def logits_of(result: Any) -> Tensor:
    """Returns the logits in the `result` of a model: a tensor, an output object with `logits`, or a tuple."""
    if isinstance(result, Tensor):
        return result
    logits: Tensor = result.logits if hasattr(result, "logits") else next(t for t in result if isinstance(t, Tensor))
    return logits


class _Spot(nn.Module):
    """Placeholder for a part of the user's model; has the part's plain attributes, which the code may read."""

    def __init__(self, bound: BoundModel, theirs: nn.Module, name: str = "") -> None:
        super().__init__()
        plain = {k: v for k, v in vars(theirs).items() if not k.startswith("_") and k != "forward"}
        self.__dict__.update({k: v for k, v in plain.items() if k != "training" and not isinstance(v, nn.Module)})
        self.__dict__["bound"], self.name_of_block = bound, name

    @property
    def weight(self) -> Any:
        """The embedding weight, for code that reads its dtype or device."""
        return self.__dict__["bound"].tok_embeddings.weight


class _BlockSpot(_Spot):
    """Placeholder for a block: calls the block if the pipeline stage has it, else returns its input."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        bound, name = self.__dict__["bound"], self.name_of_block
        bound.behind = self.is_last
        hidden, args, kwargs = split(args, kwargs)
        if bound.looks:
            bound.given[name] = (args, kwargs)
            if self.is_last:  # code after the blocks may use what they return besides the hidden state
                raise _Done(None)
            return self.shaped(hidden)
        if name not in bound.layers:
            return self.shaped(hidden)
        if bound.entered is not None:
            hidden, bound.entered = bound.entered, None
        args, kwargs = _with_containers(bound.given[name], (args, kwargs))
        result = bound.layers[name](hidden, *args, **kwargs)
        if name == list(bound.layers)[-1] and bound.output is None:
            raise _Done(result if isinstance(result, Tensor) else result[0])
        return result

    def shaped(self, hidden: Tensor) -> Any:
        """Returns `hidden` in the form of the block's result: a tensor, or the first element of a tuple."""
        return (hidden, *([None] * (self.returns - 1))) if self.returns else hidden

    returns, is_last = 0, False


def _with_containers(given: Any, here: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the block's arguments found by `look` (`given`), but with the lists, dicts and sets of the running call
    (`here`), because the block's code may fill these."""
    (args, kwargs), (own_args, own_kwargs) = given, here
    filled = (list, dict, set)
    args = tuple(own if isinstance(own, filled) else arg for arg, own in zip(args, own_args, strict=True))
    return args, {k: own_kwargs[k] if isinstance(own_kwargs[k], filled) else v for k, v in kwargs.items()}


class _Embedding(_Spot):
    """Placeholder for the embedding. If the user's embedding also scales or norms, that code runs after the lookup."""

    def __init__(self, bound: BoundModel, theirs: nn.Module) -> None:
        super().__init__(bound, theirs)
        self.own = theirs if _does_more(theirs) else None

    @property
    def weight(self) -> Any:
        """The embedding weight; if the code computes logits with it, an object that calls the head instead."""
        bound = self.__dict__["bound"]
        if bound.heads is None:
            return bound.tok_embeddings.weight
        return stand_in((bound.rows, bound.width), layer=bound.heads)

    def forward(self, ids: Tensor, *args: Any, **kwargs: Any) -> Any:
        return _Rows(self.__dict__["bound"], self.own)(ids, *args, **kwargs)


class _Rows:
    """Looks up the embeddings of tokens [B, S], and runs the code of the user's embedding class (`own`) on them."""

    def __init__(self, bound: BoundModel, own: Any) -> None:
        self.bound, self.own = bound, own

    def __call__(self, ids: Tensor, *args: Any, **kwargs: Any) -> Any:
        bound = self.bound
        if bound.looks or bound.tok_embeddings is None:
            sequences, tokens = ids.shape
            return bound.empty(sequences, tokens, ids.device)
        hidden = bound.tok_embeddings(ids)
        if self.own is not None:
            self.own.__dict__["weight"] = hidden.new_empty(())
            with _FoundInTable(hidden):
                hidden = self.own(ids, *args, **kwargs)
        bound.look(hidden.dtype)
        return hidden


class _FoundInTable(TorchFunctionMode):
    """A mode in which F.embedding looks nothing up and returns `found`."""

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


class _Table:
    """Returns the position table in its parameter's shape; zeros on a pipeline stage without an embedding."""

    def __init__(self, bound: BoundModel, shape: tuple[int, ...]) -> None:
        self.bound, self.shape = bound, shape

    def __call__(self) -> Tensor:
        bound = self.bound
        if bound.looks or bound.entered is not None:
            return torch.zeros((), dtype=bound.dtype, device=bound.called_with[0].device).expand(self.shape)
        return bound.pos_embeddings.weight.view(self.shape)


class _FirstNorm(_Spot):
    def forward(self, hidden: Tensor) -> Any:
        bound = self.__dict__["bound"]
        return hidden if bound.looks or bound.entered is not None else bound.embedding_norm(hidden)


class _NormSpot(_Spot):
    def forward(self, hidden: Tensor) -> Any:
        bound = self.__dict__["bound"]
        if bound.looks:
            raise _Done(None)
        return bound.norm(hidden)


class _NormOfBothEnds(_Spot):
    """Placeholder for a norm that runs both before and after the blocks."""

    def forward(self, hidden: Tensor) -> Any:
        bound = self.__dict__["bound"]
        return (_NormSpot if bound.behind else _FirstNorm).forward(self, hidden)  # type: ignore[arg-type]


class _Head(_Spot):
    def forward(self, hidden: Tensor) -> Any:
        return _HeadCall(self.__dict__["bound"])(hidden)


class _BiasedTiedHead(TiedHead):
    """A tied head with a bias of its own."""

    def __init__(self, bias: nn.Parameter) -> None:
        super().__init__()
        self.bias = bias

    def forward(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return F.linear(hidden, weight, self.bias)


class _HeadCall:
    """Computes the logits of hidden states [B, S, D]."""

    def __init__(self, bound: BoundModel) -> None:
        self.bound = bound

    def __call__(self, hidden: Tensor) -> Any:
        bound = self.bound
        if bound.looks:
            raise _Done(None)
        logits = bound.output(hidden, bound.tok_embeddings.weight) if bound.tied else bound.output(hidden)
        return logits.full_tensor() if bound.gathers and hasattr(logits, "full_tensor") else logits


def _put(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    model.get_submodule(parent)._modules[name] = module


def head_of(model: nn.Module, roles: DecoderRoles) -> str:
    """Returns the path of the module that computes the logits; "" if the code multiplies by a tied embedding weight
    directly. Raises UnknownError if the module also does something else."""
    table = model.get_parameter(roles.embedding)
    if not roles.tied:
        if not roles.head.alone:
            raise UnknownError(f"{roles.head.path} computes the logits and does more")
        path: str = roles.head.path
        return path
    own = roles.embedding.rpartition(".")[0]
    holders = (p for p, m in model.named_modules() if p != own and any(w is table for w in m._parameters.values()))
    return next(holders, "")


def plain_table(module: nn.Module) -> nn.Module:
    """Returns `module`, or if it does more than a lookup, a new nn.Embedding with its weight."""
    if not _does_more(module):
        return module
    weight: Any = module._parameters.pop("weight")
    rows, width = weight.shape
    made = nn.Embedding(rows, width, padding_idx=getattr(module, "padding_idx", None), device="meta")
    made.weight = weight
    return made


def _does_more(table: nn.Module) -> bool:
    """True for an nn.Embedding subclass with its own forward."""
    return isinstance(table, nn.Embedding) and type(table).forward is not nn.Embedding.forward
