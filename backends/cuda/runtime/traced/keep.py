"""Measures the activation memory of a user's module, op by op, in one forward and backward on fake tensors.

Nothing is computed. Batch size and sequence length are primes that divide no other size, so the number of elements of a
tensor tells which of the two it has. Every tensor that a norm, attention or activation allocates and saves is counted
as the device's allocator would, and so are the temporary tensors of the backward.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import flop_registry

from planc.backends.cuda.audit.attention import one_kernel_attention
from planc.backends.cuda.audit.memory import MemoryTracker
from planc.backends.cuda.audit.norms import one_kernel_norms
from planc.backends.cuda.audit.own_code import one_sequence_a_row
from planc.backends.cuda.models import moe
from planc.backends.cuda.runtime.traced.bind import BoundModel, logits_of
from planc.backends.cuda.runtime.traced.expert_form import OwnExperts
from planc.backends.cuda.runtime.traced.free_names import part_at
from planc.backends.cuda.runtime.traced.roles import DecoderRoles, UnknownError
from planc.backends.cuda.runtime.traced.shell import first_line, place, without_weights
from planc.ir.model import EXPERTS, SLOTS, Model, Op, Section
from planc.ir.saved_by_code import Elements, Moment, SavedByCode, Unseen

SHORTEST, LONGEST = 61, 2**21
"""Range of sequence lengths in tokens: shorter than any window, and longer than any length a module's code mentions."""
DTYPES: Mapping[torch.dtype, str] = {
    torch.bfloat16: "compute",
    torch.float32: "fp32",
    torch.int64: "int",
    torch.bool: "byte",
    torch.uint8: "byte",
}
TRIED_TOKENS = tuple(4**n for n in range(3, 11))
"""Sequence lengths (tokens) at which moments are compared: a moment that is the peak at none of them is dropped."""

SEEN = ("norm", "attention", "elementwise", "route", "add", "code", "loss", "embedding")
"""Kinds of op that run the module's own code."""
NO_NODE = 2**62
"""Autograd nodes that accumulate parameter gradients have sequence numbers above this, and belong to no op."""

Region = tuple[Section, str]
"""A section of the op graph, and the name of an op there; "" for code that belongs to no measured op."""
Label = tuple[tuple[str, ...], str]
Counted = dict[Label, float]
"""Number of tensors by dims and dtype."""
Found = dict[Region, SavedByCode]


@dataclass
class _Whole:
    """Measurements of opaque code: its multiply-adds by op (`products`), and the source lines of experts in it, which
    are not run (`experts`)."""

    products: dict[Region, tuple[Elements, ...]] = field(default_factory=dict)
    experts: dict[str, None] = field(default_factory=dict)


@dataclass(eq=False)
class _Made:
    """An allocated storage: the op that allocated it (`region`), and the ops that save it (`savers`)."""

    elements: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    region: Region
    in_backward: bool
    name: str = ""
    """Name of the op graph's tensor that the storage holds; "" for none."""
    is_buffer: bool = False
    savers: set[Region] = field(default_factory=set)


def with_own_code(model: Model, module: nn.Module, roles: DecoderRoles) -> Model:
    """Returns `model` with the activation memory of each op, measured on the user's `module` with these `roles`.

    The code may behave differently for sequences longer than an attention window. Lengths in the module's config,
    buffers and code are tried to find where its memory changes.
    """
    speaks = [module.__dict__.get("config"), *module.modules()]
    numbers = [n for part in speaks if part is not None for n in vars(part).values()]
    numbers += [op.window for kind in model.blocks for op in model.ops[kind]]
    numbers += [n for table in module.buffers() for n in table.shape]
    numbers += [model.sizes.get("positions", 0)]
    lengths = sorted({n for n in numbers if type(n) is int and SHORTEST < n < LONGEST})
    seen: dict[int, Found] = {}
    failed: dict[int, str] = {}
    whole = _Whole()

    def found_at(at: int) -> Found:
        """Returns the memory by op for lengths over `lengths[at - 1]`, up to `lengths[at]`; {} if the code fails."""
        if at not in seen:
            try:
                with _unlogged():
                    seen[at] = _found(model, module, roles, SHORTEST if at == 0 else lengths[at - 1] + 1, whole)
            except Exception as error:  # the model's own code may reject these lengths
                known = isinstance(error, UnknownError)
                said = first_line(error) if known else f"{place(error)}: {type(error).__name__}: {first_line(error)}"
                seen[at], failed[at] = {}, said
        return seen[at]

    places = [*_changes(found_at, 0, len(lengths)), len(lengths)]
    unseen = tuple(
        Unseen(
            above=lengths[before] if before >= 0 else 0, up_to=lengths[at] if at < len(lengths) else 0, why=failed[at]
        )
        for before, at in pairwise([-1, *places])
        if at in failed
    )
    unseen += tuple(Unseen(why=f"{line}: experts in code that stays whole are not run") for line in whole.experts)
    regions = dict.fromkeys(region for at in places for region in found_at(at))
    own = {
        region: _by_length([(lengths[at] if at < len(lengths) else 0, found_at(at).get(region)) for at in places])
        for region in regions
    }
    ops = {
        section: tuple(
            replace(
                op,
                own_code=own.get((section, op.name), ()),
                multiply_adds=whole.products.get((section, op.name), op.multiply_adds),
            )
            for op in ops
        )
        for section, ops in model.ops.items()
    }
    return replace(model, ops=ops, unseen=unseen)


@contextmanager
def _unlogged() -> Iterator[None]:
    """A context in which torch does not log tracebacks of code that fails on fake tensors."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


def _by_length(found: list[tuple[int, SavedByCode | None]]) -> tuple[SavedByCode, ...]:
    """Merges measurements in `found`: pairs of a longest sequence (tokens; 0: any) and the memory up to that length,
    None if the code fails there. Equal neighbours become one, and None is left out."""
    ends: list[SavedByCode] = []
    for end, code in found:
        if code is not None:
            again = bool(ends) and replace(ends[-1], up_to=0) == code
            ends[len(ends) - again :] = [replace(code, up_to=end)]
    return tuple(ends)


def _changes(found_at: Callable[[int], Found], low: int, high: int) -> list[int]:
    """Returns the indices i in [`low`, `high`) for which `found_at(i)` and `found_at(i + 1)` differ, by binary search.
    If two indices have equal values, all between them are assumed to be equal."""
    if low == high or found_at(low) == found_at(high):
        return []
    if high - low == 1:
        return [low]
    middle = (low + high) // 2
    return [*_changes(found_at, low, middle), *_changes(found_at, middle, high)]


def _found(model: Model, module: nn.Module, roles: DecoderRoles, tokens: int, whole: _Whole) -> Found:
    """Measures the activation memory of each op at a sequence length of about `tokens`, and adds the multiply-adds of
    opaque code to `whole`. Raises UnknownError, or what the user's code raises."""
    lengths = {*model.sizes.values()}
    sequence = _prime(tokens, lengths, model.sizes.get("positions", LONGEST))
    run = _SavedRun(model, _prime(3, {*lengths, sequence, sequence + 1}), sequence)
    bound = BoundModel(without_weights(module).train(), roles, sequence)
    _shorten(bound, model, run)
    run.watch(bound)
    for region, counted in run.products.items():
        whole.products.setdefault(region, _elements(counted))
    whole.experts.update(dict.fromkeys(run.experts))
    found = {(section, op.name): run.own(section, op) for section, ops in model.ops.items() for op in ops}
    return {region: code for region, code in found.items() if code is not None}


def _prime(first: int, lengths: Iterable[int], most: int = LONGEST) -> int:
    """Returns the first prime from `first` to `most` that divides none of `lengths`, and whose successor does not
    either. If there is none, returns the largest such prime below `first`, else `first`."""
    fits = (
        number
        for number in (*range(first, most + 1), *range(first - 1, 1, -1))
        if all(number % d for d in range(2, int(number**0.5) + 1))
        # The next number too: attention sinks make dims of sequence + 1.
        and all(n % number and n % (number + 1) for n in lengths)
    )
    return next(fits, first)


def _shorten(bound: BoundModel, model: Model, run: _SavedRun) -> None:
    """Removes all blocks but one of each kind, casts parameters to bf16, and replaces experts by the identity."""
    seen: set[Section] = set()
    for name, kind in zip(list(bound.layers), model.kinds, strict=True):
        if kind in seen:
            del bound.layers[name]
        seen.add(kind)
    whole: Any = bound.__dict__["model"]
    for parameter in {*bound.parameters(), *whole.parameters()}:
        parameter.data = parameter.data.to(torch.bfloat16)
    for part in {*bound.modules(), *whole.modules()}:
        own = list(part.parameters(recurse=False))
        picks = any(p.dim() == 3 for p in own) and not isinstance(part, nn.modules.conv._ConvNd)
        if isinstance(part, moe.Experts) or (picks and not any(p.dim() == 3 and p.shape[0] == 1 for p in own)):
            part.forward = partial(_nothing, run, own)


class _Given(torch.autograd.Function):
    """The identity function. It saves no tensor for its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


def _nothing(run: _SavedRun, weights: list[nn.Parameter], *args: Any, **kwargs: Any) -> Any:
    """Replaces experts: returns the first tensor argument, and counts in `run` the multiply-adds that the experts would
    do."""
    tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)]
    given, picks = tensors[0], next((t.shape[-1] for t in tensors if t.dtype == torch.int64), 1)
    rows = given.numel() // given.shape[-1]
    run.left_out(rows * picks * sum(w[0].numel() for w in weights if w.dim() == 3))
    return _Given.apply(given)  # type: ignore[no-untyped-call]


class _Watch(MemoryTracker):  # type: ignore[no-untyped-call]
    """A dispatch mode that records every allocated storage with the op that allocates it."""

    def __init__(self, run: _SavedRun) -> None:
        super().__init__()
        self.run, self.storages = run, dict[int, _Made]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_dispatch__(func, types, args, kwargs)
        if not self.run.in_backward:
            packet = getattr(func, "overloadpacket", func)
            if (flops := flop_registry.get(packet)) is not None:
                self.run.multiplied(flops(*args, **(kwargs or {}), out_val=made) // 2)
            elif packet is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu:
                q, k, v = args[:3]
                self.run.multiplied(q.numel() * k.shape[-2] + k.shape[-2] * prod(q.shape[:-1]) * v.shape[-1])
        return made

    def hold(self, values: Iterable[Any]) -> None:
        tensors = [t for t in values if isinstance(t, Tensor)]
        super().hold(tensors)
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage._cdata not in self.storages:
                number = storage.nbytes() // tensor.element_size()
                shape = tuple(tensor.shape) if tensor.numel() == number else (number,)
                made = self.run.made(number, shape, tensor.dtype)
                made.is_buffer = storage._cdata in self.run.buffers
                self.storages[storage._cdata] = made

    def _let_go(self, key: int) -> None:
        super()._let_go(key)
        if (made := self.storages.pop(key, None)) is not None:
            self.run.let_go(made)


class _SavedRun:
    """Records, for one run of a model, the storages that each op of the op graph `model` allocates, saves and frees."""

    def __init__(self, model: Model, batch: int, sequence: int) -> None:
        self.model, self.batch, self.sequence = model, batch, sequence
        self.here: Region = ("first", model.ops["first"][-1].name)
        self.in_backward = False
        self.begins: list[tuple[int, Region]] = []
        """First autograd sequence number of each region."""
        self.seen: set[Region] = set()
        self.left: dict[Region, list[_Made]] = {}
        self.net: dict[Region, tuple[Counted, Counted]] = {}
        self.moments: dict[Region, list[tuple[Counted, Counted]]] = {}
        self.products: dict[Region, Counted] = {}
        """Multiply-adds of opaque code."""
        self.experts: list[str] = []
        """Source lines of opaque code whose experts were not run."""
        self.by_name = {(s, op.name): op for s, ops in model.ops.items() for op in ops}

    # Events of the run.

    def watch(self, bound: BoundModel) -> None:
        """Runs `bound` forward and backward on fake tensors."""
        with FakeTensorMode(allow_non_fake_inputs=True), one_sequence_a_row(), ExitStack() as stack:
            bound.to_empty(device="cpu")
            parts = (*bound.buffers(), *bound.__dict__["model"].buffers())
            self.buffers = {buffer.untyped_storage()._cdata for buffer in parts}
            tokens = torch.zeros(self.batch, self.sequence, dtype=torch.long)
            self.watcher = _Watch(self)
            self._hook(bound)
            stack.enter_context(self.watcher)
            stack.enter_context(one_kernel_norms(self.watcher))
            stack.enter_context(one_kernel_attention(self.watcher))
            self.enter(self.here)
            with saved_tensors_hooks(self.saved, lambda t: t):
                logits = logits_of(bound(tokens))
            self.settle()
            self.in_backward = True
            logits.sum().backward()  # type: ignore[no-untyped-call]

    def enter(self, region: Region) -> None:
        """Attributes all storages from now on to the op `region`."""
        self.here = region
        self.seen.add(region)
        self.begins.append((torch._C._autograd._get_sequence_nr(), region))

    def made(self, elements: int, shape: tuple[int, ...], dtype: torch.dtype) -> _Made:
        """Returns the record of a new storage. In the backward it belongs to the op whose backward runs, else to the
        running op."""
        if self.in_backward:
            node = torch._C._current_autograd_node()
            if node is not None:
                self.here = self._region(node._sequence_nr())
        made = _Made(elements, shape, dtype, self.here, self.in_backward)
        if self.in_backward and self.here[1]:
            self._change(0, made, 1)
            plus, minus = self.net[self.here]
            self.moments.setdefault(self.here, []).append((dict(plus), dict(minus)))
        return made

    def multiplied(self, multiply_adds: int) -> None:
        """Adds `multiply_adds` of the forward to the running op, if this is opaque code."""
        op = self.by_name.get(self.here)
        if op is not None and op.kind == "code":
            dims, rest = self._rows(multiply_adds)
            if "sequence" not in dims:  # a convolution over padded positions
                dims, rest = ("batch", "sequence"), multiply_adds / (self.batch * self.sequence)
            counted = self.products.setdefault(self.here, {})
            counted[dims, "compute"] = counted.get((dims, "compute"), 0.0) + rest

    def left_out(self, multiply_adds: int) -> None:
        """Records experts that were not run, and adds their `multiply_adds` to the running op."""
        self.multiplied(multiply_adds)
        op = self.by_name.get(self.here)
        if op is not None and op.kind == "code":
            self.experts.append(op.code_line)

    def _rows(self, elements: int) -> tuple[tuple[str, ...], float]:
        """Splits a number of elements into the dims that divide it (batch, sequence) and the rest."""
        rest, dims = elements, list[str]()
        if rest % self.batch == 0:
            rest //= self.batch
            dims.append("batch")
        while rest and rest % self.sequence == 0:
            rest //= self.sequence
            dims.append("sequence")
        return tuple(dims), rest

    def let_go(self, made: _Made) -> None:
        """Records that the storage `made` was freed."""
        if not self.in_backward:
            return
        if made.in_backward and made.region == self.here:
            self._change(0, made, -1)
        elif made.in_backward or (made in self.left.get(made.region, ())):
            self._change(1, made, 1)

    def _change(self, side: int, made: _Made, number: int) -> None:
        region = self.here if made.in_backward else made.region
        counted = self.net.setdefault(region, ({}, {}))[side]
        for label, copies in self.labels(made, region).items() if region[1] else ():
            if label[0]:
                counted[label] = counted.get(label, 0.0) + number * copies

    def _region(self, number: int) -> Region:
        at = bisect_right(self.begins, number, key=lambda begin: begin[0]) - 1
        return self.begins[at][1] if at >= 0 and number < NO_NODE else ("", "")

    def saved(self, tensor: Tensor) -> Tensor:
        """Records that the running op saves `tensor` for the backward."""
        made = self.watcher.storages.get(tensor.untyped_storage()._cdata)
        if made is not None:
            made.savers.add(self.here)
        return tensor

    def settle(self) -> None:
        """Groups the storages that are live after the forward by the op that allocated them. Those allocated before the
        blocks (such as rotary tables) count even if no op saves them."""
        for made in self.watcher.storages.values():
            if (made.savers or made.region[0] == "first") and not made.name:
                self.left.setdefault(made.region, []).append(made)
        self.named = {
            (region, made.name) for made in self.watcher.storages.values() if made.name for region in made.savers
        }

    # Hooks that find the running op.

    def _hook(self, bound: BoundModel) -> None:
        sections = {"first": "", "last": ""}
        for name, block in bound.layers.items():
            kind = self.model.kinds[int(name)]
            sections[kind] = name
            adds = [op.name for op in self.model.ops[kind] if op.kind == "add"]
            block.register_forward_pre_hook(self._begins_block((kind, adds[0])), with_kwargs=True)
            block.register_forward_hook(self._ends_block)
            for part in block.modules():
                if isinstance(part, OwnExperts):
                    part.forward = partial(self._expert, kind, part)  # type: ignore[method-assign]
        for section, number in sections.items():
            for op in self.model.ops[section]:
                if op.kind not in ("norm", "matmul", "embedding", "code"):
                    continue
                try:
                    part = part_at(bound, op.module.replace("*", number))
                except KeyError:
                    continue
                after = self._after(section, op)
                part.register_forward_pre_hook(self._begins(section, op), with_kwargs=True)
                part.register_forward_hook(self._ends(section, op, after))

    def _expert(self, section: Section, experts: OwnExperts, rows: Tensor, weights: Tensor, counts: Tensor) -> Tensor:
        """Runs all token rows through the first expert, and measures the code between its matmuls. The memory per row
        is the same for all experts."""
        between: Region = (section, next(o.name for o in self.model.ops[section] if o.module.endswith(".experts")))
        op, before = self.by_name[between], self.here
        self.enter((section, ""))
        gates, ups = _of_first_expert(rows, experts.w1), _of_first_expert(rows, experts.w3)
        self._name(rows, next(o.output for o in self.model.ops[section] if o.kind == "route"))
        for tensor, name in zip((gates, ups), op.inputs, strict=True):
            self._name(tensor, name)
        self.enter(between)
        mid = experts.gate(gates, ups) * weights[:, None].to(rows.dtype)
        self._name(mid, op.output)
        self.enter((section, ""))
        down: Any = experts.w2
        made = F.linear(mid, down.weight[0])
        if down.bias is not None:
            self.enter(between)
            added = down.bias[0].expand(len(rows), -1).clone()
            made = made + added * weights[:, None].to(added.dtype)
        self.enter(before)
        return made

    def _after(self, section: Section, op: Op) -> Region:
        """Returns the op whose code runs after the module of the norm or linear layer `op`."""
        ops = self.model.ops[section]
        if section == "first":
            return section, ops[-1].name
        following = ops[ops.index(op) + 1 :]
        route = next((o.name for o in following if o.kind == "route"), "")
        if ".moe." in op.module or (route and op.output in ("ffn.in", "hidden.mid")):
            return section, route
        before_core = op.name.startswith(("attention.", "mla.")) and op.name != "attention.out"
        kinds: tuple[str, ...] = ("attention",) if before_core else ("add", "loss")
        if op.name.startswith("ffn.") and op.name != "ffn.down" and op.kind == "matmul":
            kinds = ("elementwise",)
        return section, next((o.name for o in following if o.kind in kinds), "")

    def _begins(self, section: Section, op: Op) -> Callable[..., None]:
        def begins(part: nn.Module, args: Any, kwargs: Any) -> None:
            self._name(_first((*args, *kwargs.values())), op.inputs[0])
            self.enter((section, op.name))

        return begins

    def _ends(self, section: Section, op: Op, after: Region) -> Callable[..., None]:
        def ends(part: nn.Module, args: Any, result: Any) -> None:
            self._name(_first((result,)), op.output)
            self.enter(after)

        return ends

    def _begins_block(self, region: Region) -> Callable[..., Any]:
        def begins(block: nn.Module, args: Any, kwargs: Any) -> Any:
            self.enter(("first", self.model.ops["first"][-1].name))
            self._name(_first((*args, *kwargs.values())), self.model.block_output)
            given = _in_bf16(args), _in_bf16(kwargs)
            self.enter(region)
            return given

        return begins

    def _ends_block(self, block: nn.Module, args: Any, result: Any) -> None:
        self._name(_first(result if isinstance(result, tuple) else (result,)), self.model.block_output)
        self.enter(("first", self.model.ops["first"][-1].name))

    def _name(self, tensor: Any, name: str) -> None:
        """Records that the storage of `tensor` holds the op graph's tensor `name`; an fp32 copy is not recorded."""
        if isinstance(tensor, Tensor):
            made = self.watcher.storages.get(tensor.untyped_storage()._cdata)
            copied = tensor.dtype == torch.float32 and self.model.tensor[name].dtype == "compute"
            if made is not None and not made.name and not copied:
                made.name = name

    # Results.

    def labels(self, made: _Made, region: Region) -> Counted:
        """Returns the number of tensors in the storage `made` of the op `region`, by dims and dtype; {} for a storage
        without a sequence dim that is not a buffer."""
        dtype = DTYPES.get(made.dtype, "fp32")
        wider = made.dtype.itemsize / BYTES[dtype]
        if made.is_buffer:
            return {((), dtype): made.elements * wider}
        rows, rest = self._rows(made.elements)
        dims = list(rows)
        for _ in range(made.shape.count(self.sequence + 1)):  # one more key or token, such as an attention sink
            rest //= self.sequence + 1
            dims.append("sequence")
        if "sequence" not in dims or region not in self.by_name:
            return {}
        op = self.by_name[region]
        if op.region == EXPERTS:  # top_k rows per token, one for each of its experts
            dims, wider = ["experts", SLOTS], wider / self.model.top_k
        found: Counted = {}
        for own, copies in self._widths(made.shape, rest, op):
            found[((*dims, *own), dtype)] = found.get(((*dims, *own), dtype), 0.0) + copies * wider
        return found

    def _widths(self, shape: tuple[int, ...], rest: float, op: Op) -> list[tuple[tuple[str, ...], float]]:
        """Splits a tensor of `shape` into tensors of the op graph: returns pairs (dims besides batch and sequence,
        number of such tensors). `rest` is the size of the tensor besides batch and sequence."""
        sizes = self.model.sizes
        found = [self.model.tensor[t].dims[2:] for t in (op.output, *op.inputs) if len(self.model.tensor[t].dims) > 2]
        if op.kind == "attention" and shape[-1] == rest:
            together = [self.model.tensor[t].dims[2:] for t in op.inputs[:3]]
            if rest == sum(prod(sizes[d] for d in dims) for dims in together):
                return [(dims, 1.0) for dims in together]
        for name in dict.fromkeys(d for dims in found for d in dims if d in ("heads", "kv_heads") and sizes[d] > 1):
            if rest % sizes[name] == 0 and {sizes[name], self.batch * sizes[name]} & {*shape[:-1]}:
                return [((name,), rest / sizes[name])]
        for dims in found:
            if rest % prod(sizes[d] for d in dims) == 0:
                return [(dims, rest / prod(sizes[d] for d in dims))]
        return [((), rest)]

    def own(self, section: Section, op: Op) -> SavedByCode | None:
        """Returns the activation memory measured for `op`, or None if its code was not run."""
        region = section, op.name
        if op.kind == "rope":
            core = next((o.name for o in self.model.ops[section] if o.kind == "attention"), "")
            return SavedByCode() if (section, core) in self.seen else None
        if op.kind not in SEEN or region not in self.seen:
            return None
        inside: Counted = {}
        for made in self.left.get(region, ()):
            for label, copies in self.labels(made, region).items():
                inside[label] = inside.get(label, 0.0) + copies
        at_ends = op.kind in ("loss", "embedding") or section == "first"
        saves = op.saves if at_ends else tuple(sorted(name for r, name in self.named if r == region))
        return SavedByCode(saves=saves, inside=_elements(inside), moments=tuple(self._moments(region)))

    def _moments(self, region: Region) -> Iterator[Moment]:
        """Yields the points of an op's backward at which its memory is largest, for any sequence length in
        `TRIED_TOKENS`. A point lists the tensors allocated and freed so far."""
        found = dict[Moment, None]()
        moments = [Moment(made=_elements(a), freed=_elements(b)) for a, b in self.moments.get(region, ())]
        for tokens in TRIED_TOKENS if moments else ():
            found[max(moments, key=lambda m: self._size(m.made, tokens) - self._size(m.freed, tokens))] = None
        yield from found

    def _size(self, elements: Iterable[Elements], tokens: int) -> float:
        sizes: dict[str, float] = {**self.model.sizes, "batch": 1, "sequence": tokens}
        sizes[SLOTS] = tokens * self.model.top_k / sizes.get("experts", 1)
        return sum(e.copies * BYTES[e.dtype] * prod(sizes[d] for d in e.dims) for e in elements)


BYTES = {"compute": 2, "fp32": 4, "int": 8, "byte": 1}
"""Bytes per element of each dtype label, for a model in bf16."""


def _elements(counted: Counted) -> tuple[Elements, ...]:
    return tuple(
        Elements(dims=dims, dtype=dtype, copies=copies)  # type: ignore[arg-type]
        for (dims, dtype), copies in sorted(counted.items())
        if copies > 0
    )


def _first(values: Iterable[Any]) -> Any:
    return next((v for v in values if isinstance(v, Tensor)), None)


def _of_first_expert(rows: Tensor, layer: Any) -> Tensor:
    return F.linear(rows, layer.weight[0], None if layer.bias is None else layer.bias[0])


def _in_bf16(value: Any) -> Any:
    """Returns a block's inputs with floating-point tensors in bf16, as FSDP's mixed precision casts them."""
    if isinstance(value, Tensor):
        return value.to(torch.bfloat16) if value.is_floating_point() else value
    if isinstance(value, dict):
        return {k: _in_bf16(v) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_in_bf16(v) for v in value)
    return value
