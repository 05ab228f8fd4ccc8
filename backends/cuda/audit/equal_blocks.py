"""Skips identical blocks while tracing, and counts each like one that ran.

Blocks are identical if they have the same modules, attributes, hooks, checkpointing and parameters, and are both first,
last or in the middle of their stage. Only the first and the last block of each kind run: the first runs before the
skipped ones in a forward, the last in a backward. A skipped block repeats the collectives, the change of live bytes and
the peak of that block. If the first and the last block differ, `check` raises UnlikeError, and the trace runs again
with every block.

The hooks of a skipped block run: they gather its parameters and reduce its gradients. The block returns tensors of the
same shapes as a block that ran.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from planc.backends.cuda.audit.memory import MemoryTracker
from planc.backends.cuda.audit.observe import Observer
from planc.backends.cuda.audit.traced import UnlikeError
from planc.ir.audit import Key

FORWARD, BACKWARD = "forward", "backward"
RUN = 2
"""Number of blocks of each kind that run."""


class BlockEvents(NamedTuple):
    """Records one forward or backward of a block: its collectives in order, the change of live bytes, and its peak less
    the live bytes at its start."""

    calls: tuple[tuple[Key, int], ...]
    change_bytes: int
    most_bytes: int


class TensorForm(NamedTuple):
    """Shape, stride and dtype of a tensor; `spec` is its DTensorSpec if it is a DTensor."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    spec: Any

    @classmethod
    def of(cls, tensor: Tensor) -> TensorForm:
        """Returns the shape, stride, dtype and DTensorSpec of `tensor`."""
        local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
        spec = tensor._spec if isinstance(tensor, DTensor) else None
        return cls(local.shape, local.stride(), local.dtype, spec)

    def made(self) -> Tensor:
        """Returns a new uninitialised tensor of this shape, stride and dtype; a DTensor if `spec` is set."""
        local = torch.empty_strided(self.shape, self.stride, dtype=self.dtype)
        return local if self.spec is None else DTensor(local, self.spec, requires_grad=False)  # type: ignore[no-untyped-call]

    @property
    def bytes(self) -> int:
        """Size of the local tensor (bytes)."""
        return self.shape.numel() * self.dtype.itemsize


class BlockPlace(NamedTuple):
    """Key of the `nth` forward or backward (`phase`) of a block of this `kind`. It is equal for identical blocks."""

    phase: str
    kind: Hashable
    nth: int


class PassStart(NamedTuple):
    """State at the start of a block's forward or backward: the number of collectives so far, live bytes, the peak since
    the enclosing pass began, the step's peak, and the op that reached it."""

    calls: int
    live: int
    highest: int
    peak: int
    peak_at: str


class EqualBlocks:
    """Runs some blocks of a rank's step, and counts all others like an identical block that ran."""

    def __init__(self, tracker: MemoryTracker, observer: Observer) -> None:
        self.tracker, self._observer = tracker, observer
        self.spans: dict[BlockPlace, BlockEvents] = {}
        self.outputs: dict[BlockPlace, TensorForm] = {}
        """Forms of the output of each pass: of the hidden states in a forward, of their gradient in a backward."""
        self.gradients: dict[Hashable, dict[int, TensorForm]] = {}
        """Forms of the parameter gradients of each kind of block, by parameter index."""
        self._last: dict[Hashable, nn.Module] = {}
        self._unlike: list[str] = []
        self.counted = 0
        """Number of blocks that were skipped."""

    def replace(self, modules: list[nn.Module]) -> None:
        """Replaces the forward of each block in the stages `modules`, so that identical blocks are skipped."""
        kinds: dict[Hashable, list[nn.Module]] = {}
        for kind, block in _blocks(modules):
            kinds.setdefault(kind, []).append(block)
        for kind, blocks in kinds.items():
            if len(blocks) <= RUN or not all(map(_is_countable, blocks)):
                continue
            self._last[kind] = blocks[-1]
            for block in blocks:
                runs = block is blocks[0] or block is blocks[-1]
                self.counted += not runs
                block.forward = partial(self._pass, kind, count(), block, block.forward if runs else None)

    def check(self) -> None:
        """Raises UnlikeError if two blocks of the same kind ran and had different collectives or memory."""
        if self._unlike:
            raise UnlikeError(self._unlike[0])

    def _pass(
        self, kind: Hashable, passes: Iterator[int], block: nn.Module, run: Callable[[Tensor], Tensor] | None, x: Tensor
    ) -> Tensor:
        """Runs the forward of `block`, or skips it. `run` is the original forward; None skips the block and counts it
        like an identical one. `passes` numbers the forwards of this block."""
        nth = next(passes)
        forward, backward = BlockPlace(FORWARD, kind, nth), BlockPlace(BACKWARD, kind, nth)
        start = self._start()
        if run is not None:
            y = run(x)
        elif forward not in self.outputs:
            raise UnlikeError(f"{forward.phase} {nth}: a block is skipped before an identical one has run")
        else:
            y = _Counted.apply(self, forward, backward, x, *block.parameters())  # type: ignore[no-untyped-call]
        began: list[PassStart] = []
        if y.grad_fn is None:  # no parameter up to here is trainable
            self._ran(forward, start, y) if run is not None else self._count(forward, start)
            return y
        y.grad_fn.register_prehook(lambda _: began.append(self._start()))
        if run is not None:
            _on_gradient(x, partial(self._ran_backward, backward, began, self._watch(kind, block)))
            self._ran(forward, start, y)
        else:
            _on_gradient(x, lambda _: self._count(backward, began.pop()))
            self._count(forward, start)
        return y

    def _watch(self, kind: Hashable, block: nn.Module) -> list[Any]:
        """Records the form (TensorForm) of each parameter gradient of `block`, if it is the last of its kind, whose
        backward runs first. Returns the hook handles."""
        if kind in self.gradients or block is not self._last[kind]:
            return []
        forms: dict[int, TensorForm] = {}
        self.gradients[kind] = forms
        trained = [(i, p) for i, p in enumerate(block.parameters()) if p.requires_grad]
        return [_on_gradient(p, partial(_note, forms, i)) for i, p in trained]

    def _ran_backward(self, place: BlockPlace, began: list[PassStart], watched: list[Any], grad: Tensor) -> None:
        for handle in watched:
            handle.remove()
        self._ran(place, began.pop(), grad)

    def _start(self) -> PassStart:
        tracker = self.tracker
        begun = PassStart(len(self._observer.log), tracker.live, tracker.highest, tracker.peak, tracker.peak_at)
        tracker.highest = tracker.live
        return begun

    def _ran(self, place: BlockPlace, start: PassStart, passed: Tensor) -> None:
        """Stores the collectives and memory of a forward or backward, or compares them with an identical one's."""
        tracker = self.tracker
        most = tracker.highest - start.live
        span = BlockEvents(tuple(self._observer.log[start.calls :]), tracker.live - start.live, most)
        tracker.highest = max(tracker.highest, start.highest)
        self.outputs.setdefault(place, TensorForm.of(passed))
        self.compare(f"{place.phase} {place.nth} of a block", self.spans.setdefault(place, span), span)

    def compare(self, named: str, one: BlockEvents, other: BlockEvents) -> None:
        """Records a message, which starts with `named`, if two forwards or backwards of identical blocks differ."""
        if one != other:
            self._unlike.append(f"{named}: {one} and {other}")

    def _count(self, place: BlockPlace, start: PassStart) -> None:
        """Counts a skipped forward or backward like the identical one that ran. The tensors that stand in for its
        results do not change the peak."""
        span, tracker = self.spans[place], self.tracker
        self._observer.repeat(span.calls)
        tracker.live = start.live + span.change_bytes
        tracker.highest = max(start.highest, start.live + span.most_bytes)
        tracker.peak, tracker.peak_at = max((start.peak, start.peak_at), (tracker.highest, tracker.peak_at))


class _Counted(torch.autograd.Function):
    """Stands in for a skipped block: saves only its input, and counts the other tensors that the block would save."""

    @staticmethod
    def forward(
        ctx: Any, blocks: EqualBlocks, forward: BlockPlace, backward: BlockPlace, x: Tensor, *parameters: Tensor
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.blocks, ctx.backward = blocks, backward
        made = blocks.outputs[forward]
        ctx.saved_bytes = blocks.spans[forward].change_bytes - made.bytes
        ctx.parameters = [TensorForm.of(p) for p in parameters]
        return made.made()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        blocks, place = ctx.blocks, ctx.backward
        blocks.tracker.live -= ctx.saved_bytes  # freed first, because all gradients are allocated at once here
        forms = blocks.gradients[place.kind]
        made = [forms[i].made() if i in forms else None for i in range(len(ctx.parameters))]
        return None, None, None, blocks.outputs[place].made(), *made


def _on_gradient(tensor: Tensor, do: Callable[[Tensor], None]) -> Any:
    """Calls `do` with the accumulated gradient of `tensor`; returns the hook handle."""
    return tensor.register_hook(do)  # type: ignore[no-untyped-call]


def _note(forms: dict[int, TensorForm], at: int, grad: Tensor) -> None:
    forms[at] = TensorForm.of(grad)


def _blocks(modules: list[nn.Module]) -> Iterator[tuple[Hashable, nn.Module]]:
    """Yields every block of the stages in order, with a key that is equal for identical blocks."""
    for module in modules:
        layers = getattr(module, "layers", None)
        if not isinstance(layers, nn.ModuleDict):
            continue
        blocks = list(layers.values())
        beside = tuple(
            (name, type(child).__qualname__) for name, child in module.named_children() if child is not layers
        )
        for at, block in enumerate(blocks):
            first, last = at == 0, at == len(blocks) - 1
            yield (first, last, beside if first or last else (), _description(block)), block


def _is_countable(block: nn.Module) -> bool:
    """True if the block may be skipped: it has no FSDP groups inside, and no unusual parameter class."""
    inside = [module for module in block.modules() if module is not block]
    plain = all(type(p) in (nn.Parameter, DTensor) for p in block.parameters())
    return plain and not any(isinstance(module, FSDPModule) for module in inside)


def _description(block: nn.Module) -> Hashable:
    """Returns the facts about a block's modules that determine the block's work."""
    return tuple((name, *_facts(module)) for name, module in block.named_modules())


def _facts(module: nn.Module) -> Iterator[Hashable]:
    yield type(module).__module__, type(module).__qualname__
    for name, value in sorted(vars(module).items()):
        if isinstance(value, bool | int | float | str | torch.dtype | None):
            yield name, value
        elif callable(value) and not isinstance(value, type):
            yield name, _name_of(value)
        elif name.endswith("_hooks"):
            yield name, tuple(_name_of(hook) for hook in value.values())
    for tensors in (module._parameters, module._buffers):
        for name, tensor in tensors.items():
            if tensor is not None:
                local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
                layout = str(tensor.placements) if isinstance(tensor, DTensor) else ""
                yield name, tensor.shape, local.shape, tensor.dtype, tensor.requires_grad, layout


def _name_of(function: Any) -> Hashable:
    """Returns the qualified name of a function, with its bound arguments."""
    if isinstance(function, partial):
        bound = (*function.args, *function.keywords.values())
        return "partial", _name_of(function.func), tuple(map(_name_of, bound)), tuple(function.keywords)
    if callable(function):
        name = getattr(function, "__qualname__", type(function).__qualname__)
        return getattr(function, "__module__", ""), name
    return repr(function)
