"""Skips identical microbatches of a pipeline while tracing, and counts each like a microbatch that ran.

torch itself executes its schedule to the end. On each virtual stage the first microbatch runs (it gathers parameters
and allocates gradients), the last one, and two between them. If these two have equal collectives, peaks and bytes left
allocated, the others count like them. Otherwise UnlikeError is raised, and the trace runs every microbatch.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.distributed.pipelining import schedules as pipelining
from torch.distributed.tensor import DTensor

from planc.backends.cuda.audit.memory import MemoryTracker
from planc.backends.cuda.audit.observe import Observer
from planc.backends.cuda.audit.traced import UnlikeError
from planc.diag.fast_dataclass import dataclass
from planc.ir.audit import Key

FORWARD, LOSS, BACKWARD, INPUTS, WEIGHTS = "forward", "loss", "backward", "inputs", "weights"
"""Kinds of action: a forward, the loss after it, a full backward, a dgrad and a wgrad."""
COMPARED = 2
"""Microbatches of a virtual stage, besides its first and last, that run and must be equal."""


@dataclass(frozen=True)
class ActionRecord:
    """Collectives and memory of one action that ran: its collectives in order, the bytes it left allocated besides its
    outputs, and its peak less the live bytes at its start."""

    calls: tuple[tuple[Key, int], ...]
    left_bytes: int
    most_bytes: int


class ActionPlace(NamedTuple):
    """Key of the actions that are compared: the kind of action, its virtual stage, and the kinds of all actions that
    the microbatch runs on that stage (`course`)."""

    kind: str
    stage: int
    course: frozenset[str]


class ActionRepeats:
    """Runs some actions of a pipeline rank's step, and counts all others like the same action of another microbatch."""

    def __init__(self, tracker: MemoryTracker, observer: Observer, *, whole: bool = False) -> None:
        """With `whole`, no microbatch is skipped."""
        self._whole = whole
        self._tracker, self._observer = tracker, observer
        self._records: dict[ActionPlace, dict[int, ActionRecord]] = {}
        self._courses: dict[tuple[int, int], frozenset[str]] = {}
        self._chosen: dict[int, set[int]] = {}
        self._passed: dict[tuple[str, int], list[tuple[torch.Size, torch.dtype] | None]] = {}
        self._last = 0
        self.counted: set[int] = set()
        """Microbatches that were skipped on some virtual stage."""

    @contextmanager
    def within(self, emitted: ModuleType) -> Iterator[None]:
        """A context in which the schedule that the program `emitted` builds skips identical microbatches."""
        name, kind = next((n, k) for n, k in vars(emitted).items() if _is_schedule(k))

        def built(*args: Any, **kwargs: Any) -> Any:
            schedule = kind(*args, **kwargs)
            self._replace(schedule)
            return schedule

        with patch.object(emitted, name, built), _without_collector():
            yield

    def _replace(self, schedule: Any) -> None:
        """Replaces the methods of the schedule's stages by ones that may skip a microbatch."""
        stages = schedule._stages if hasattr(schedule, "_stages") else [schedule._stage]
        self._last = schedule._n_microbatches - 1
        order = schedule.pipeline_order[stages[0].group_rank]
        actions = [a for both in order if both is not None for a in both.sub_actions or (both,)]
        for action in actions:
            at = action.stage_index, action.microbatch_index
            self._courses[at] = self._courses.get(at, frozenset()) | {str(action.computation_type)}
        for stage in stages:
            self._chosen[stage.stage_index] = self._chosen_on(stage.stage_index, actions)
            self._replace_forward(stage)
            self._replace_backward(stage)
            self._replace_weights(stage)
        self._replace_loss(schedule)

    def _chosen_on(self, stage: int, actions: list[Any]) -> set[int]:
        """Returns the microbatches that run on a stage: the first and the last, and for each kind of action and
        `ActionPlace.course` the first `COMPARED` others in schedule order, which may be reversed."""
        if self._whole:
            return set(range(self._last + 1))
        chosen, seen = {0, self._last}, Counter[tuple[str, frozenset[str]]]()
        for action in actions:
            microbatch = action.microbatch_index
            if action.stage_index == stage and microbatch is not None and 0 < microbatch < self._last:
                sort = str(action.computation_type), self._courses[stage, microbatch]
                seen[sort] += 1
                if seen[sort] <= COMPARED:
                    chosen.add(microbatch)
        return chosen

    def _replace_forward(self, stage: Any) -> None:
        index, forward = stage.stage_index, stage.forward_one_chunk

        def forward_one_chunk(m: int, args: Any, *more: Any, **named: Any) -> Any:
            if m in self._chosen[index]:
                return self._ran(FORWARD, index, m, lambda: forward(m, args, *more, **named), lambda out: [out])
            self._count(FORWARD, index, m)
            (output,) = self._stand_ins(FORWARD, index)
            inputs = args if stage.is_first else stage._retrieve_recv_activations(m)
            _save_forward(stage, m, output, list(inputs))
            return output

        stage.forward_one_chunk = forward_one_chunk

    def _replace_loss(self, schedule: Any) -> None:
        compute, losses = schedule._maybe_compute_loss, schedule._internal_losses

        def maybe_compute_loss(stage: Any, output: Any, targets: Any, m: int, *more: Any) -> None:
            index = stage.stage_index
            if not stage.is_last:
                return
            if m in self._chosen[index]:
                self._ran(LOSS, index, m, lambda: compute(stage, output, targets, m, *more), lambda _: losses[m:])
            else:
                self._count(LOSS, index, m)
                losses.append(losses[-1].detach().clone())
                self._tracker.pass_on(losses[m:])

        schedule._maybe_compute_loss = maybe_compute_loss

    def _replace_backward(self, stage: Any) -> None:
        index, backward = stage.stage_index, stage.backward_one_chunk

        def backward_one_chunk(m: int, loss: Any = None, full_backward: bool = True, **named: Any) -> None:
            kind = BACKWARD if full_backward else INPUTS
            if m in self._chosen[index]:
                run = lambda: backward(m, loss=loss, full_backward=full_backward, **named)  # noqa: E731
                self._ran(kind, index, m, run, lambda _: stage.bwd_cache[m])
                return
            self._count(kind, index, m)
            outputs, inputs = _saved_forward(stage, m)
            grads = stage.bwd_cache[m] = self._stand_ins(kind, index)
            if not full_backward:
                _leave_for_weights(stage, m, outputs, inputs, grads)

        stage.backward_one_chunk = backward_one_chunk

    def _replace_weights(self, stage: Any) -> None:
        index, weights = stage.stage_index, stage.backward_weight_one_chunk

        def backward_weight_one_chunk(m: int, **named: Any) -> None:
            if m in self._chosen[index]:
                self._ran(WEIGHTS, index, m, lambda: weights(m, **named), lambda _: ())
                return
            self._count(WEIGHTS, index, m)
            del stage.backward_state[m], stage.dw_runner[m]

        stage.backward_weight_one_chunk = backward_weight_one_chunk

    def _ran(self, kind: str, stage: int, m: int, run: Callable[[], Any], passed: Callable[[Any], Any]) -> Any:
        """Runs an action, records it and returns its result; `passed` selects the tensors that other actions use."""
        tracker, calls = self._tracker, len(self._observer.log)
        live, own_bytes = tracker.live, tracker.own_bytes
        tracker.highest = live
        result = run()
        gc.collect()  # torch's dgrad leaves reference cycles that hold tensors
        tensors = list(passed(result))
        tracker.pass_on(tensors)
        record = ActionRecord(tuple(self._observer.log[calls:]), tracker.own_bytes - own_bytes, tracker.highest - live)
        self._records.setdefault(self._place(kind, stage, m), {})[m] = record
        self._passed[kind, stage] = [_form(t) for t in tensors]
        return result

    def _count(self, kind: str, stage: int, m: int) -> None:
        """Counts a skipped action like the same action of a microbatch that ran."""
        record = self._common(self._place(kind, stage, m))
        self._observer.repeat(record.calls)
        self._tracker.repeat(record.left_bytes, record.most_bytes)
        self.counted.add(m)

    def _stand_ins(self, kind: str, stage: int) -> tuple[Tensor | None, ...]:
        """Returns empty tensors shaped like those that the last action of this kind passed to other actions."""
        made = [None if form is None else torch.empty(form[0], dtype=form[1]) for form in self._passed[kind, stage]]
        self._tracker.pass_on(made)
        return tuple(made)

    def _place(self, kind: str, stage: int, m: int) -> ActionPlace:
        return ActionPlace(kind, stage, self._courses[stage, m])

    def _common(self, place: ActionPlace) -> ActionRecord:
        """Returns the record that all microbatches that ran have in common. Raises UnlikeError if there is none."""
        between = {m: r for m, r in self._records.get(place, {}).items() if 0 < m < self._last}
        if len(between) < COMPARED or len(set(between.values())) > 1:
            raise UnlikeError(f"{place.kind} on stage {place.stage}: {between}")
        return next(iter(between.values()))


@contextmanager
def _without_collector() -> Iterator[None]:
    """A context without automatic garbage collection, which would free tensors in reference cycles at arbitrary
    times."""
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def _is_schedule(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, pipelining._PipelineSchedule)


def _form(value: Any) -> tuple[torch.Size, torch.dtype] | None:
    """Returns shape and dtype of a tensor (of a DTensor's local tensor); None for any other value."""
    local = value._local_tensor if isinstance(value, DTensor) else value
    return (local.shape, local.dtype) if isinstance(local, Tensor) else None


def _save_forward(stage: Any, m: int, output: Any, inputs: list[Any]) -> None:
    """Saves outputs and inputs of a forward on torch's `stage`, as the forward itself does."""
    if hasattr(stage, "fwd_cache"):  # until torch 2.14
        stage.fwd_cache[m] = (output,), inputs
    else:
        stage._forward_chunk_states[m] = stage._make_forward_chunk_state((output,), inputs)


def _saved_forward(stage: Any, m: int) -> tuple[Any, Any]:
    if hasattr(stage, "fwd_cache"):
        return tuple(stage.fwd_cache.pop(m))
    state = stage._forward_chunk_states.pop(m)
    return tuple(state.live_outputs), state.input_values


def _leave_for_weights(stage: Any, m: int, outputs: Any, inputs: Iterable[Any], grads: Iterable[Any]) -> None:
    """Saves on `stage` the state that a dgrad leaves for its wgrad, with the gradients `grads` of received tensors."""
    rest = ((), ()) if stage.is_last else (outputs, stage._retrieve_recv_grads(m))
    stage.backward_state[m] = inputs, None, *rest
    stage.dw_runner[m] = None
    for value, grad in zip(inputs, grads, strict=False):
        if grad is not None:
            value.grad = grad
