"""The search for a generator's layout: every mesh that a serve plan with `?` describes, examined as `planc check`
does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from planc.diag.diagnostic import Diagnostic
from planc.diag.errors import PlanError
from planc.diag.fast_dataclass import dataclass
from planc.driver.examining import Examined, examine
from planc.driver.serving import examine_serve
from planc.ir.serve_report import ServeReport, SyncFacts
from planc.ir.served import ServedMemory
from planc.ir.target import AnyTarget
from planc.language.build import Built, build_serve
from planc.searching.space import Point, Space

MOST_LAYOUTS = 2_000
"""Layouts that are examined at most; an interrupt or a time limit ends a search earlier."""


@dataclass(frozen=True, kw_only=True)
class ServeCandidate:
    """A layout of the generator without an error: its plan file, and what `planc check` says of it."""

    text: str
    """The serve plan with every `?` filled in."""
    values: tuple[str, ...]
    """Values of the free places, in the order of the file."""
    memory: ServedMemory
    sync: SyncFacts
    decode_s: float | None
    """A roofline: one token of every request of a replica."""
    tokens_per_s: float | None
    """Tokens per second of all replicas together by that roofline; None if the plan has no `requests`."""
    on_front: bool = False
    """True if no other layout has both as many tokens per second and as short a sync."""

    def to_json(self) -> dict[str, Any]:
        return {
            "plan": self.text,
            "tokens_per_s": self.tokens_per_s,
            "decode_s": self.decode_s,
            "sync_s": self.sync.seconds,
            "cache_tokens": self.memory.tokens,
            "requests": self.memory.requests,
            "replicas": self.memory.replicas,
            "on_front": self.on_front,
        }


@dataclass(frozen=True, kw_only=True)
class ServeRefused:
    """Layouts that are no answer for one reason; `message` is that of the first."""

    code: str
    message: str
    layouts: int


@dataclass(frozen=True, kw_only=True)
class ServeFound:
    """`planc.serve_search/1`: the best layouts of a generator, most tokens per second first."""

    best: tuple[ServeCandidate, ...]
    fitting: int
    """Layouts without an error."""
    decided: int
    """Layouts that were examined."""
    seconds: float
    refusals: tuple[ServeRefused, ...]
    cut_short: str = ""
    """Why the search ended early: "time", "interrupt" or "layouts", their largest number. Empty: all were decided."""

    def to_json(self) -> dict[str, Any]:
        return {
            "format": "planc.serve_search/1",
            "best": [c.to_json() for c in self.best],
            "fitting": self.fitting,
            "decided": self.decided,
            "seconds": self.seconds,
            "refusals": [{"code": r.code, "message": r.message, "layouts": r.layouts} for r in self.refusals],
            "cut_short": self.cut_short or None,
        }


def search_serve(
    source: str | Path,
    *,
    set: dict[str, int] | None = None,
    top: int = 10,
    target: AnyTarget | None = None,
    seconds: float | None = None,
    interrupted: Callable[[], bool] = lambda: False,
    on_progress: Callable[[int], None] = lambda _: None,
) -> ServeFound:
    """Return the `top` layouts of a serve plan with sizes or orders of axes left open that fit, and hold what is asked.

    Those with most tokens per second by the roofline of decoding come first; without `requests`, those with the
    shortest sync. `best` holds every layout than which no other is better in both, before others.

    Args:
        source: path of the serve plan.
        set: values of its `let` numbers, by name.
        top: number of layouts.
        target: the target of the training plan; None: its own.
        seconds: time limit.
        interrupted: called before each layout; if it returns True, the search ends as at the time limit.
        on_progress: called with the number of layouts examined so far.

    Raises PlanError if the files have errors whatever the sizes are.
    """
    path, given, started = Path(source), set or {}, time.perf_counter()
    trainer: Examined | None = None

    def read_trainer(file: Path) -> Built:
        nonlocal trainer
        trainer = trainer or examine(file, target=target)
        assert trainer.built is not None
        return trainer.built

    def build(file: Path, given: dict[str, int], _on: str, unsaved: Mapping[Path, str]) -> Built:
        return build_serve(file, given, unsaved, read_trainer=read_trainer)

    space = Space(path, given, build=build)
    fitting: list[ServeCandidate] = []
    reasons: dict[str, list[Diagnostic]] = {}
    decided, cut_short = 0, ""
    for point in _points(space):
        late = seconds is not None and time.perf_counter() - started > seconds
        cut_short = "interrupt" if interrupted() else "time" if late else "layouts" if decided == MOST_LAYOUTS else ""
        if cut_short:
            break
        text = space.text_of(point)
        examined = examine_serve(path, set=given, unsaved={path.resolve(): text}, trainer=trainer)
        decided += 1
        on_progress(decided)
        wrong = next((d for d in examined.report.diagnostics if d.severity == "error"), None)
        if wrong is not None:
            reasons.setdefault(wrong.code, []).append(wrong)
            continue
        requests = examined.serve.requests if examined.serve else None
        fitting.append(_candidate(text, space.values_of(point), examined.report, requests.count if requests else None))
    if not fitting and not cut_short and decided == 1:
        raise PlanError(tuple(d for found in reasons.values() for d in found))
    refusals = [ServeRefused(code=c, message=found[0].message, layouts=len(found)) for c, found in reasons.items()]
    return ServeFound(
        best=tuple(_best(fitting)[:top]),
        fitting=len(fitting),
        decided=decided,
        seconds=time.perf_counter() - started,
        refusals=tuple(sorted(refusals, key=lambda r: -r.layouts)),
        cut_short=cut_short,
    )


def _points(space: Space) -> Iterator[Point]:
    batch = space.plan.batch
    for variant in range(len(space.variants)):
        for sizes, order in space.laid():
            yield Point(variant, sizes, batch.sequences, batch.microbatch_sequences, None, order)


def _candidate(text: str, values: tuple[str, ...], report: ServeReport, requests: int | None) -> ServeCandidate:
    assert report.memory is not None and report.sync is not None
    rate = report.memory.replicas * requests / report.decode_s if requests and report.decode_s else None
    return ServeCandidate(
        text=text, values=values, memory=report.memory, sync=report.sync, decode_s=report.decode_s, tokens_per_s=rate
    )


def _best(fitting: list[ServeCandidate]) -> list[ServeCandidate]:
    """Return the layouts, those of the front first."""
    from dataclasses import replace

    found, shortest = list[ServeCandidate](), float("inf")
    for one in sorted(fitting, key=lambda c: (-(c.tokens_per_s or 0.0), c.sync.seconds)):
        found.append(replace(one, on_front=one.sync.seconds < shortest))
        shortest = min(shortest, one.sync.seconds)
    return sorted(found, key=lambda c: not c.on_front)
