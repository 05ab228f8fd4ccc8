"""Events of a run, sent from rank 0 to the launcher and printed as a table.

Under planc's launcher rank 0 writes events as JSON lines; under torchrun or Slurm it prints the table itself.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import Any, TextIO

MARK = "@planc "
"""Prefix of an event in a rank's output."""
HEAD = "  step      loss  grad norm        lr   tokens/s    MFU     GiB     left"


@dataclass(frozen=True)
class StepDone:
    """One optimizer step. `left_s` is the estimated time of the remaining steps at the median step time so far.

    `step_s` is the step time, `data_s` the part that waited for the batch; `mfu` is the model FLOPs utilisation of the
    plan's chips; `memory_gib` the peak memory of rank 0. None: unknown.
    """

    step: int
    steps: int
    loss: float
    grad_norm: float
    lr: float
    tokens_per_s: float
    left_s: float
    step_s: float = 0.0
    data_s: float = 0.0
    mfu: float | None = None
    memory_gib: float | None = None

    def line(self) -> str:
        return (
            f"{self.step:>6}  {self.loss:>8.4f}  {self.grad_norm:>9.4f}  {self.lr:>8.2e}"
            f"  {self.tokens_per_s:>9,.0f}  {_or_dash(self.mfu, '.1%'):>5}  {_or_dash(self.memory_gib, '.2f'):>6}"
            f"  {_clock(self.left_s):>7}"
        )


@dataclass(frozen=True)
class HeldOut:
    """The loss on held-out data after `step` steps, in nats per token."""

    step: int
    loss: float

    def line(self) -> str:
        return f"{self.step:>6}  {self.loss:>8.4f}  held out"


@dataclass(frozen=True)
class SaveDone:
    """The checkpoint of `step` is on disk. Training was blocked for `stall_s` seconds; writing took `write_s` seconds
    more."""

    step: int
    stall_s: float
    write_s: float

    def line(self) -> str:
        return f"{self.step:>6}  saved in {self.write_s:.2f} s; training waited {self.stall_s * 1e3:.0f} ms"


@dataclass(frozen=True)
class SaveFailed:
    """The checkpoint of `step` could not be written; `why` is the reason."""

    step: int
    why: str

    def line(self) -> str:
        return f"{self.step:>6}  not saved: {self.why}"


@dataclass(frozen=True)
class Skipped:
    """The update of `step` was skipped. `where` has a line for each rank, with its values that were not finite."""

    step: int
    why: str
    where: list[str]

    def line(self) -> str:
        return f"{self.step:>6}  skipped: {self.why}" + "".join(f"; {place}" for place in self.where)


Event = StepDone | HeldOut | SaveDone | SaveFailed | Skipped
KINDS: dict[str, type[Event]] = {
    "step": StepDone,
    "held_out": HeldOut,
    "saved": SaveDone,
    "not_saved": SaveFailed,
    "skipped": Skipped,
}


def encode(event: Event) -> str:
    """Encode `event` as a line of a rank's output, for `decode`."""
    return MARK + json.dumps({"kind": kind_of(event), **asdict(event)})


def kind_of(event: Event) -> str:
    """Return the kind of `event`, a key of KINDS."""
    return next(name for name, cls in KINDS.items() if isinstance(event, cls))


def say(line: str) -> None:
    """Write `line` to stdout in a single call, because `print` writes the newline separately, so that lines of threads
    would mix."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def decode(line: str) -> Event | None:
    """Return the event in `line`, a line of a rank's output; None if it has no event, or if other output has damaged
    it."""
    values = marked(line, MARK)
    if values is None or values.get("kind") not in KINDS:
        return None
    return KINDS[values.pop("kind")](**values)


def marked(line: str, mark: str) -> dict[str, Any] | None:
    """Return the JSON object after the prefix `mark` of `line`; None if the prefix is missing or the JSON is
    invalid."""
    if not line.startswith(mark):
        return None
    try:
        found = json.loads(line.removeprefix(mark))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


class EventTable:
    """Prints events as a table. On a terminal the line of the last step is overwritten."""

    def __init__(self, stream: TextIO, log_every: int) -> None:
        self._stream, self._log_every = stream, log_every
        self._live = stream.isatty()
        self._headed = False

    def __call__(self, event: Event) -> None:
        if not self._headed:
            self._stream.write(HEAD + "\n")
            self._headed = True
        keep = not isinstance(event, StepDone) or event.step in (1, event.steps)
        keep = keep or event.step % self._log_every == 0
        if self._live:
            self._stream.write(f"\r{event.line():<{len(HEAD)}}" + ("\n" if keep else ""))
        elif keep:
            self._stream.write(event.line() + "\n")
        self._stream.flush()


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _clock(seconds: float) -> str:
    """Return a number of seconds as `45s`, `2:05` or `1:02:05`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
