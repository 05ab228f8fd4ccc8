"""The training loop, which is the same for every runtime and imports no framework."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from planc.trainer.preset.settings import TrainTable
from planc.trainer.run.lr_schedule import learning_rate
from planc.trainer.telemetry.events import Event, HeldOut, Skipped, StepDone

if TYPE_CHECKING:
    from planc.ir.session import Session
    from planc.trainer.data.stream import BatchSource
    from planc.trainer.telemetry.profiler import Profile


MOST_SKIPPED = 10
"""Maximum number of consecutive skipped steps; more are not caused by single batches."""


class NotFiniteError(Exception):
    """Raised if the loss or the gradient norm is not finite and the run stops."""

    def __init__(self, step: int, loss: float, grad_norm: float, where: list[str]) -> None:
        found = f"; not finite on {'; on '.join(where)}" if where else ""
        super().__init__(f"step {step}: loss {loss}, gradient norm {grad_norm}{found}")


class PreemptedError(Exception):
    """Raised if the run was preempted and has saved its state."""


@dataclass(frozen=True)
class Facts:
    """Constants of a step: tokens, model FLOPs, and the peak rate of all chips."""

    tokens: int
    flops: float = 0.0
    peak_flops_per_s: float = 0.0

    def mfu(self, step_s: float) -> float | None:
        """Return the model FLOPs utilisation (a fraction) of a step of `step_s` seconds; None without a peak."""
        return self.flops / step_s / self.peak_flops_per_s if self.peak_flops_per_s else None


@dataclass
class History:
    """Losses, gradient norms and times of all steps so far."""

    losses: list[float | None] = field(default_factory=list)
    """None for a step that was skipped because its loss or gradient was not finite."""
    grad_norms: list[float | None] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """Wall-clock time of each step, including its batch and excluding held-out losses."""
    held_out: dict[int, float] = field(default_factory=dict)
    """Held-out loss by the number of steps done."""

    @property
    def steps(self) -> int:
        """Number of steps taken so far, skipped ones included."""
        return len(self.losses)

    @property
    def step_time_s(self) -> float:
        """Median step time (s) without the first step, which includes compilation and connection."""
        return median(self.seconds[1:] or self.seconds)


def train(
    session: Session,
    source: BatchSource,
    settings: TrainTable,
    *,
    steps: int,
    facts: Facts,
    tell: Callable[[Event], None],
    history: History | None = None,
    after_step: Callable[[int, History], None] = lambda _step, _history: None,
    now: Callable[[str], None] = lambda _doing: None,
    profile: Profile | None = None,
) -> History:
    """Train from the end of `history` up to step `steps`, and return the longer history. Raises NotFiniteError if the
    loss or gradient norm is not finite.

    `after_step` is called after each step and its held-out loss; `now` is called with the name of each phase when it
    starts; `tell` gets the events. `facts` are the constants of a step.
    """
    history = history or History()
    if history.steps == 0:
        now("held-out loss")
        _evaluate(session, source, settings, history, 0, tell)
    for step in range(history.steps + 1, steps + 1):
        rate = learning_rate(settings, step)
        if profile:
            profile.before(step)
        data_s, skipped = _step(session, source, settings, history, step, rate, now)
        if profile:
            profile.after(step)
        tell(skipped or _step_done(session, history, steps, rate, facts, data_s))
        if step == steps or (settings.eval_every and step % settings.eval_every == 0):
            now(f"held-out loss after step {step}")
            _evaluate(session, source, settings, history, step, tell)
        now(f"the end of step {step}")
        after_step(step, history)
    return history


def _step(
    session: Session,
    source: BatchSource,
    settings: TrainTable,
    history: History,
    step: int,
    rate: float,
    now: Callable[[str], None],
) -> tuple[float, Skipped | None]:
    """Take one step. Return the seconds spent on loading its batch; and the skipped update if its loss or gradient norm
    is not finite and the preset says to skip it, else None."""
    start = time.perf_counter()
    now(f"the data of step {step}")
    tokens, targets = source.batch(step)
    data_s = time.perf_counter() - start
    now(f"step {step}")
    loss, grad_norm = session.step(tokens, targets, rate)
    history.seconds.append(time.perf_counter() - start)
    if math.isfinite(loss) and math.isfinite(grad_norm):
        history.losses.append(loss)
        history.grad_norms.append(grad_norm)
        return data_s, None
    where = session.not_finite()
    if settings.on_nan == "stop" or _in_a_row(history.losses) >= MOST_SKIPPED:
        raise NotFiniteError(step, loss, grad_norm, where)
    history.losses.append(None)
    history.grad_norms.append(None)
    return data_s, Skipped(step, f"loss {loss}, gradient norm {grad_norm}", where)


def _in_a_row(losses: list[float | None]) -> int:
    """Return the number of consecutive skipped steps at the end of `losses`."""
    return next((n for n, loss in enumerate(reversed(losses)) if loss is not None), len(losses))


def _evaluate(
    session: Session,
    source: BatchSource,
    settings: TrainTable,
    history: History,
    step: int,
    tell: Callable[[Event], None],
) -> None:
    if settings.eval_batches == 0:
        return
    losses = [session.evaluate(*source.held_out(index)) for index in range(settings.eval_batches)]
    history.held_out[step] = sum(losses) / len(losses)
    tell(HeldOut(step, history.held_out[step]))


def _step_done(session: Session, history: History, steps: int, rate: float, facts: Facts, data_s: float) -> StepDone:
    step, loss, grad_norm = history.steps, history.losses[-1], history.grad_norms[-1]
    assert loss is not None and grad_norm is not None
    return StepDone(
        step=step,
        steps=steps,
        loss=loss,
        grad_norm=grad_norm,
        lr=rate,
        tokens_per_s=facts.tokens / history.seconds[-1],
        left_s=(steps - step) * history.step_time_s,
        step_s=history.seconds[-1],
        data_s=data_s,
        mfu=facts.mfu(history.seconds[-1]),
        memory_gib=session.peak_memory_gib(),
    )
