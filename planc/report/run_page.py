"""The page of a training run, `planc.report.run/1`: measurements in its metrics file, compared with the predictions."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import pairwise
from math import isfinite, nan
from pathlib import Path
from statistics import median
from typing import Any, Literal

from planc.picture.charts import Bar, BarPart, Curve, curves, stacked_bars
from planc.picture.marks import Picture
from planc.picture.units import gib, percent, seconds
from planc.report.data import Data, PageView
from planc.report.plan_page import Number
from planc.trainer.telemetry.goodput import RunClock
from planc.trainer.telemetry.metrics_file import NAME, Record, read_metrics
from planc.version import __version__

MOST_POINTS = 500
"""Number of points of a curve; longer ones keep the minimum and maximum of each interval."""
MOST_EVENTS = 100
FIGURES = ("steps", "loss", "tokens_per_s", "memory_gib", "step_s", "mfu")
"""Fields of a step that are read."""
MOST_BYTES = 500_000_000
"""Largest metrics file (bytes) that is read."""
USES = (
    BarPart("compute", "steps"),
    BarPart("recompute", "steps taken twice"),
    BarPart("exposed_comm", "waiting for saves"),
    BarPart("overhead", "starting"),
    BarPart("bubble", "the rest"),
)


class RunError(ValueError):
    """The path has no metrics file of a training run, or one that is too large or not in planc's format."""


class Series(Data):
    """One figure over the run's steps."""

    steps: tuple[int, ...]
    values: tuple[float, ...]
    predicted: float | None
    usual: float
    """The median over all steps, including those without a point."""


class RunLosses(Data):
    """Training losses, and held-out losses if the run has any."""

    train: Series
    held_out: Series | None
    starts: tuple[int, ...]
    """Steps at which the run was restarted."""
    summary: str


class Figure(Data):
    """A per-step figure: tokens per second, or peak GiB of rank 0."""

    series: Series
    starts: tuple[int, ...]
    summary: str


class Compared(Data):
    """One figure, predicted and measured; `error` is predicted over measured, minus one."""

    name: str
    unit: str
    predicted: float
    measured: float
    error: float
    texts: tuple[str, str]


class Comparison(Data):
    """Predicted figures compared with measured ones."""

    rows: tuple[Compared, ...]
    summary: str


class RunSeconds(Data):
    """Seconds of wall-clock time by use; they sum to the time from the first start to the last record."""

    productive_s: float
    redone_s: float
    checkpoint_s: float
    restart_s: float
    stall_s: float
    wall_s: float
    share: float
    predicted: float | None
    summary: str


class Happened(Data):
    """An event other than a step: a start, a save, a skipped update, the end."""

    after_s: float
    """Seconds from the run's first start."""
    step: int
    what: str


class RunVerdict(Data):
    """One sentence and four numbers."""

    sentence: str
    numbers: tuple[Number, ...]
    headline: str


class RunPage(Data):
    """The content of a page about a run."""

    format: Literal["planc.report.run/1"] = "planc.report.run/1"
    planc_version: str
    name: str
    target: str
    devices: int
    plan_sha256: str
    verdict: RunVerdict
    losses: RunLosses | None
    speed: Figure | None
    memory: Figure | None
    compared: Comparison | None
    goodput: RunSeconds | None
    events: tuple[Happened, ...]
    command: str

    @property
    def title(self) -> str:
        """The title of the page: the run, and how far it got."""
        return f"{self.name}: {self.verdict.headline}"


def metrics_of(path: Path) -> Path:
    """Return the metrics file of the run at `path`: `path` itself if it is a file, else `metrics.jsonl` in the folder,
    else the only `*.metrics.jsonl` in it. Raises RunError if there is not exactly one."""
    if not path.is_dir():
        return path
    found = [path / NAME] if (path / NAME).is_file() else sorted(path.glob(f"*.{NAME}"))
    if len(found) != 1:
        named = f": {', '.join(p.name for p in found[:5])}" if found else ""
        raise RunError(f"{path}: {len(found) or 'no'} metrics files{named}; name one of a run of planc train")
    return found[0]


def run_page(path: Path, command: str, passed: Callable[[float], object] = bool) -> RunPage:
    """Return the page of the run at `path`, its folder or its metrics file. `command` is the command line that writes
    the page, and `passed` is called with the share of the file that has been read.

    Raises RunError if there is no valid metrics file, and OSError if it cannot be read.
    """
    file, run = metrics_of(path), _RunRecords()
    if file.is_file() and file.stat().st_size > MOST_BYTES:
        raise RunError(f"{file}: more than {MOST_BYTES / 1e6:,.0f} MB")
    try:
        for record in read_metrics(file, passed):
            if isinstance(record.get("time"), int | float) and isfinite(record["time"]):
                run.add(record)
        if run.first is not None and run.columns["step"]:
            return _page(file, run, run.first, command)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{file}: not as planc writes it: {type(error).__name__}: {error}") from error
    raise RunError(f"{file}: no start and step of a run of planc train")


class _RunRecords:
    """The figures of a run's records that a page needs: a few numbers of each step, the first and last start, ..."""

    def __init__(self) -> None:
        self.clock = RunClock()
        self.first: Record | None = None
        self.last: Record = {}
        """The last start."""
        self.restarts: set[int] = set()
        """Steps at which the run was started again."""
        self.ending: Record = {}
        """The last start or end."""
        self.columns = {name: array("d") for name in ("step", *FIGURES)}
        """The figures of each step; NaN where it has none."""
        self.held_out: dict[int, float] = {}
        self.events: deque[tuple[Record, int]] = deque(maxlen=MOST_EVENTS)
        """The last events other than steps, each with the step before it."""
        self._step = 0

    def add(self, record: Record) -> None:
        """Note the next record. Raises KeyError, TypeError or ValueError for one that planc never writes."""
        self.clock.add(record)
        kind = record["kind"]
        self._step = int(record.get("step") or record.get("done") or self._step)
        if kind == "step":
            self.columns["step"].append(int(record["step"]))
            for name in FIGURES:
                value = record.get(name)
                self.columns[name].append(nan if value is None else value)
        elif kind == "held_out":
            self.held_out[int(record["step"])] = record["loss"]
        elif kind in EVENTS:
            self.events.append((record, self._step))
        if kind == "start":
            if self.first is not None:
                self.restarts.add(int(record["done"]))
            self.first, self.last = self.first or record, record
        if kind in ("start", "end"):
            self.ending = record

    @cached_property
    def order(self) -> Sequence[int]:
        """Index of each step, in the order of their numbers. If a step was repeated, the last record counts."""
        steps = self.columns["step"]
        if all(a < b for a, b in pairwise(steps)):
            return range(len(steps))
        return [at for _, at in sorted({step: at for at, step in enumerate(steps)}.items())]

    def numbers(self, name: str, first: int = 0) -> list[tuple[int, float]]:
        """Return (step, value) of each step that has the figure `name`, without the `first` ones."""
        steps, values = self.columns["step"], self.columns[name]
        return [(int(steps[at]), values[at]) for at in self.order[first:] if isfinite(values[at])]

    def step_seconds(self) -> list[float]:
        """Return the seconds of each step but the first, which compiles, unless it is the only one."""
        return [value for _, value in self.numbers("step_s", 1 if len(self.order) > 1 else 0)]


def _page(file: Path, run: _RunRecords, first: Record, command: str) -> RunPage:
    again = tuple(sorted(run.restarts))
    again = again[:: -(-len(again) // MOST_EVENTS) or 1]  # marks on the curves: of more starts, one in so many
    predictions: dict[str, Any] = run.last.get("predicted") or {}
    losses = _losses(run, again)
    speed = _figure(run, "tokens_per_s", predictions.get("tokens_per_s"), again, "tokens each second")
    memory = _figure(run, "memory_gib", predictions.get("memory_gib"), again, "GiB of rank 0")
    goodput = _goodput(run, predictions.get("goodput"))
    name = file.parent.name if file.name == NAME else file.name.removesuffix(f".{NAME}")
    return RunPage(
        planc_version=__version__,
        name=name or str(file),
        target=str(first["target"]),
        devices=int(first["devices"]),
        plan_sha256=str(first["plan_sha256"]),
        verdict=_verdict(run, losses, speed, goodput),
        losses=losses,
        speed=speed,
        memory=memory,
        compared=_compared(run, speed, memory, goodput),
        goodput=goodput,
        events=tuple(_events(run, float(first["time"]))),
        command=command,
    )


def _series(pairs: list[tuple[int, float]], predicted: float | None) -> Series | None:
    if not pairs:
        return None
    usual, shown = median(value for _, value in pairs), _fewer(pairs)
    values = tuple(float(f"{value:.6g}") for _, value in shown)
    return Series(steps=tuple(step for step, _ in shown), values=values, predicted=predicted, usual=usual)


def _fewer(pairs: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return at most 500 of the points, in order: the minimum and the maximum of each of 250 intervals."""
    if (stretch := _interval(pairs)) == 1:
        return pairs
    pieces = [pairs[i : i + stretch] for i in range(0, len(pairs), stretch)]
    ends = [{min(p, key=_value), max(p, key=_value)} for p in pieces]
    return [point for pair in ends for point in sorted(pair)]


def _interval(pairs: list[tuple[int, float]]) -> int:
    """Return the number of points of which two are drawn; 1: all are."""
    return 1 if len(pairs) <= MOST_POINTS else -(-2 * len(pairs) // MOST_POINTS)


def _drawn(pairs: list[tuple[int, float]]) -> str:
    """Return a sentence that says which of the points a curve has; "" if it has all."""
    every = _interval(pairs)
    return f" Of every {every:,} steps the lowest and the highest are drawn." if every > 1 else ""


def _value(point: tuple[int, float]) -> float:
    return point[1]


def _losses(run: _RunRecords, again: tuple[int, ...]) -> RunLosses | None:
    pairs = run.numbers("loss")
    train = _series(pairs, None)
    if train is None:
        return None
    held_out = sorted(run.held_out.items())
    held = _series([(step, float(v)) for step, v in held_out if v is not None and isfinite(v)], None)
    summary = f"The loss goes from {train.values[0]:.4f} to {train.values[-1]:.4f} nats a token"
    if held is not None:
        summary += f", held out from {held.values[0]:.4f} to {held.values[-1]:.4f}"
    return RunLosses(train=train, held_out=held, starts=again, summary=f"{summary}.{_drawn(pairs)}")


def _figure(run: _RunRecords, name: str, predicted: float | None, again: tuple[int, ...], what: str) -> Figure | None:
    pairs = run.numbers(name)
    series = _series(pairs, predicted)
    if series is None:
        return None
    text = partial("{:,.0f}".format) if name == "tokens_per_s" else gib
    summary = f"Usually {text(series.usual)} {what}"
    if predicted is not None:
        summary += f"; {text(predicted)} were predicted"
    return Figure(series=series, starts=again, summary=f"{summary}.{_drawn(pairs)}")


def _goodput(run: _RunRecords, predicted: float | None) -> RunSeconds | None:
    found = run.clock.goodput()
    if found is None or not found.wall_s > 0:
        return None
    parts = {n: getattr(found, n) for n in ("productive_s", "redone_s", "checkpoint_s", "restart_s", "stall_s")}
    summary = f"{percent(found.share)} of {seconds(found.wall_s)} went into steps that count"
    summary += f"; {percent(predicted)} were predicted for a long run." if predicted is not None else "."
    return RunSeconds(**parts, wall_s=found.wall_s, share=found.share, predicted=predicted, summary=summary)


def _compared(
    run: _RunRecords, speed: Figure | None, memory: Figure | None, goodput: RunSeconds | None
) -> Comparison | None:
    start, times = run.last, run.step_seconds()
    predictions: dict[str, Any] = start.get("predicted") or {}
    mfu = [value for _, value in run.numbers("mfu")]
    pairs: list[tuple[str, str, str, float | None, Callable[[float], str]]] = [
        ("step", "s", "step_time_s", median(times) if times else None, seconds),
        ("tokens/s", "", "tokens_per_s", speed.series.usual if speed else None, "{:,.0f}".format),
        (
            f"MFU ({start['dtype']})" if "dtype" in start else "MFU",
            "share",
            "mfu",
            median(mfu) if mfu else None,
            percent,
        ),
        ("memory", "GiB", "memory_gib", max(memory.series.values) if memory else None, gib),
        ("goodput", "share", "goodput", goodput.share if goodput else None, percent),
    ]
    rows = tuple(
        Compared(
            name=name,
            unit=unit,
            predicted=predictions[key],
            measured=measured,
            error=predictions[key] / measured - 1,
            texts=(text(predictions[key]), text(measured)),
        )
        for name, unit, key, measured, text in pairs
        if measured and predictions.get(key) is not None
    )
    if not rows:
        return None
    errors = ", ".join(f"{row.name} {100 * row.error:+.1f} %" for row in rows)
    return Comparison(rows=rows, summary=f"Predicted over measured, less one: {errors}.")


EVENTS: dict[str, Callable[[Record], str]] = {
    "start": lambda r: f"started on {int(r['devices']):,} devices for {r['target']}",
    "saved": lambda r: f"saved in {seconds(r['write_s'])}; training waited {seconds(r['stall_s'])}",
    "not_saved": lambda r: f"not saved: {r['why']}",
    "skipped": lambda r: f"no update: {r['why']}",
    "end": lambda r: f"ended: {r['why']}",
}
"""Events in words, by the kind of a record."""


def _events(run: _RunRecords, began: float) -> Iterator[Happened]:
    for r, step in run.events:
        yield Happened(after_s=float(r["time"]) - began, step=step, what=EVENTS[r["kind"]](r))


def _verdict(
    run: _RunRecords, losses: RunLosses | None, speed: Figure | None, goodput: RunSeconds | None
) -> RunVerdict:
    last, whole = (int(run.columns[name][run.order[-1]]) for name in ("step", "steps"))
    why = str(run.ending["why"]) if run.ending["kind"] == "end" else "still running, or cut off"
    headline = f"{last:,} of {whole:,} steps, {why}"
    times = run.step_seconds()
    loss = losses.train.values[-1] if losses else 0.0
    numbers = (
        Number(
            name="loss",
            unit="nats",
            value=loss,
            text=f"{loss:.4f}" if losses else "-",
            of="nats a token, the last step",
        ),
        Number(name="step", unit="s", value=median(times), text=seconds(median(times)), of="median"),
        Number(
            name="tokens each second",
            unit="tokens/s",
            value=speed.series.usual if speed else 0.0,
            text=f"{speed.series.usual:,.0f}" if speed else "-",
            of="all devices, median",
        ),
        Number(
            name="goodput",
            unit="share",
            value=goodput.share if goodput else 0.0,
            text=percent(goodput.share) if goodput else "-",
            of=f"of {seconds(goodput.wall_s)}" if goodput else "",
        ),
    )
    return RunVerdict(
        sentence=f"The run has taken {last:,} of {whole:,} steps: {why}.", numbers=numbers, headline=headline
    )


# Pictures.


def losses_picture(data: RunLosses, width: float) -> Picture:
    """Return curves of the losses in `data` over the steps, `width` pixels wide."""
    found = [Curve("training", "front", data.train.steps, data.train.values)]
    if data.held_out is not None:
        found.append(Curve("held out", "second", data.held_out.steps, data.held_out.values, points=True))
    return curves(found, title="Losses", summary=data.summary, unit="nats a token", width=width, marks_at=data.starts)


def figure_picture(data: Figure, width: float, *, title: str, unit: str) -> Picture:
    """Return a curve of the measurements in `data`, with the predicted value, `width` pixels wide. `title` is the title
    of the picture and `unit` the unit of the vertical axis."""
    series = data.series
    found = [Curve("measured", "front", series.steps, series.values)]
    if series.predicted is not None:
        ends = (series.steps[0], series.steps[-1])
        found.append(Curve("predicted", "predicted", ends, (series.predicted, series.predicted)))
    return curves(
        found, title=title, summary=data.summary, unit=unit, width=width, marks_at=data.starts, from_zero=True
    )


def goodput_picture(data: RunSeconds, width: float) -> Picture:
    """Return one bar of the run's seconds by use (steps, repeated steps, saves, ...), `width` pixels wide."""
    values = (data.productive_s, data.redone_s, data.checkpoint_s, data.restart_s, data.stall_s)
    row = Bar("the run", values, seconds(data.wall_s))
    return stacked_bars([row], USES, title="Goodput", summary=data.summary, unit="seconds", width=width)


RUN_VIEWS: tuple[PageView, ...] = (
    PageView("verdict", "Verdict"),
    PageView("losses", "Losses", losses_picture),
    PageView("speed", "Tokens each second", partial(figure_picture, title="Tokens each second", unit="tokens/s")),
    PageView("memory", "Memory", partial(figure_picture, title="Memory of rank 0", unit="GiB")),
    PageView("compared", "Predicted beside measured"),
    PageView("goodput", "Goodput", goodput_picture),
    PageView("events", "Starts, saves, and what went wrong"),
    PageView("command", "This page again"),
)
"""The views of a page of a run."""
