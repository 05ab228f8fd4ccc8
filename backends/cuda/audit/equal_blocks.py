"""Blocks that are counted and not run, once others like them were seen to be alike.

Blocks are alike if the program's modules say the same of them: the same modules, attributes, hooks, replays and
parameters, at the same place of their stage. Of each such kind the first and the last block are run. In a forward the
first one comes before the others, in a backward the last one: the others make the calls, leave the bytes and hold the
most bytes that this one did. Where the other one of the two did not do the same, `UnlikeError` is raised at the end,
and every block has to be run.

The hooks of a counted block run (they gather its parameters and reduce its gradients), and it passes on tensors like
those of a block that ran.
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
"""Blocks of a kind that are run."""


class BlockEvents(NamedTuple):
    """Events of one pass of a block: its collectives in order, the bytes by which memory grew, and the most
    bytes that there were beyond those at its beginning."""

    calls: tuple[tuple[Key, int], ...]
    change_bytes: int
    most_bytes: int


class TensorForm(NamedTuple):
    """A tensor without its numbers; `spec` is its layout where it is a DTensor."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    spec: Any

    @classmethod
    def of(cls, tensor: Tensor) -> TensorForm:
        """The form of a `tensor`."""
        local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
        spec = tensor._spec if isinstance(tensor, DTensor) else None
        return cls(local.shape, local.stride(), local.dtype, spec)

    def made(self) -> Tensor:
        """A new tensor of this form."""
        local = torch.empty_strided(self.shape, self.stride, dtype=self.dtype)
        return local if self.spec is None else DTensor(local, self.spec, requires_grad=False)  # type: ignore[no-untyped-call]

    @property
    def bytes(self) -> int:
        """Its bytes on this rank."""
        return self.shape.numel() * self.dtype.itemsize


class BlockPlace(NamedTuple):
    """A pass of the blocks of one kind: the `nth` one that is run of a block."""

    phase: str
    kind: Hashable
    nth: int


class PassStart(NamedTuple):
    """The beginning of a pass: collectives so far, bytes alive, the most that were alive in what it lies in, and the
    most of the step with the operation after which they were."""

    calls: int
    live: int
    highest: int
    peak: int
    peak_at: str


class EqualBlocks:
    """The blocks of a rank in a step: each is run, or counted like those that it is like."""

    def __init__(self, tracker: MemoryTracker, observer: Observer) -> None:
        self.tracker, self._observer = tracker, observer
        self.spans: dict[BlockPlace, BlockEvents] = {}
        self.outputs: dict[BlockPlace, TensorForm] = {}
        """Outputs of a pass: hidden states, or their gradient."""
        self.gradients: dict[Hashable, dict[int, TensorForm]] = {}
        """Gradients of parameters by kind of block, in the order of its parameters."""
        self._last: dict[Hashable, nn.Module] = {}
        self._unlike: list[str] = []
        self.counted = 0
        """Blocks that are counted."""

    def replace(self, modules: list[nn.Module]) -> None:
        """Make the blocks of these stages run or count."""
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
        """Raise UnlikeError if blocks of a kind that were run are not alike."""
        if self._unlike:
            raise UnlikeError(self._unlike[0])

    def _pass(
        self, kind: Hashable, passes: Iterator[int], block: nn.Module, run: Callable[[Tensor], Tensor] | None, x: Tensor
    ) -> Tensor:
        """The forward of a block: run where `run` is its function, else counted."""
        nth = next(passes)
        forward, backward = BlockPlace(FORWARD, kind, nth), BlockPlace(BACKWARD, kind, nth)
        start = self._start()
        if run is not None:
            y = run(x)
        elif forward not in self.outputs:
            raise UnlikeError(f"{forward.phase} {nth}: a block is counted before one like it has run")
        else:
            y = _Counted.apply(self, forward, backward, x, *block.parameters())  # type: ignore[no-untyped-call]
        began: list[PassStart] = []
        if y.grad_fn is None:  # nothing before its end is trained
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
        """Note the forms of the gradients of a block's parameters when they come, if it is the last one of its kind,
        whose backward is the first; the handles end it."""
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
        """Keep what a pass did, or compare it with what one like it did."""
        tracker = self.tracker
        most = tracker.highest - start.live
        span = BlockEvents(tuple(self._observer.log[start.calls :]), tracker.live - start.live, most)
        tracker.highest = max(tracker.highest, start.highest)
        self.outputs.setdefault(place, TensorForm.of(passed))
        self.compare(f"{place.phase} {place.nth} of a block", self.spans.setdefault(place, span), span)

    def compare(self, named: str, one: BlockEvents, other: BlockEvents) -> None:
        """Note that two passes that have to be alike are not."""
        if one != other:
            self._unlike.append(f"{named}: {one} and {other}")

    def _count(self, place: BlockPlace, start: PassStart) -> None:
        """Count a pass like the one that was run. What stood in for its tensors, all at once, made no peak."""
        span, tracker = self.spans[place], self.tracker
        self._observer.repeat(span.calls)
        tracker.live = start.live + span.change_bytes
        tracker.highest = max(start.highest, start.live + span.most_bytes)
        tracker.peak, tracker.peak_at = max((start.peak, start.peak_at), (tracker.highest, tracker.peak_at))


class _Counted(torch.autograd.Function):
    """A block that is not run. It keeps its input, as norms do; what else it keeps is counted."""

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
        blocks.tracker.live -= ctx.saved_bytes  # first, as the gradients are made here at once
        forms = blocks.gradients[place.kind]
        made = [forms[i].made() if i in forms else None for i in range(len(ctx.parameters))]
        return None, None, None, blocks.outputs[place].made(), *made


def _on_gradient(tensor: Tensor, do: Callable[[Tensor], None]) -> Any:
    """Call a function with the gradient of `tensor`, once it is whole; the handle ends that."""
    return tensor.register_hook(do)  # type: ignore[no-untyped-call]


def _note(forms: dict[int, TensorForm], at: int, grad: Tensor) -> None:
    forms[at] = TensorForm.of(grad)


def _blocks(modules: list[nn.Module]) -> Iterator[tuple[Hashable, nn.Module]]:
    """Every block of the stages in order, with all that makes it like others."""
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
    """True if nothing inside the block has state of its own that a pass changes, as groups of fully_shard have."""
    inside = [module for module in block.modules() if module is not block]
    plain = all(type(p) in (nn.Parameter, DTensor) for p in block.parameters())
    return plain and not any(isinstance(module, FSDPModule) for module in inside)


def _description(block: nn.Module) -> Hashable:
    """All that the modules of a block say of what it does."""
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
    """A function by its name, with what is bound to it."""
    if isinstance(function, partial):
        bound = (*function.args, *function.keywords.values())
        return "partial", _name_of(function.func), tuple(map(_name_of, bound)), tuple(function.keywords)
    if callable(function):
        name = getattr(function, "__qualname__", type(function).__qualname__)
        return getattr(function, "__module__", ""), name
    return repr(function)
