"""Every call of the system that a run makes, made to fail in turn: the run goes on and is right, or ends with a code;
what is on the disk is whole, and `--resume` comes to the losses and tensors of a run that nothing happened to.

These runs are made by numpy in this process; `make nth-call` does the same to launches on both stacks."""

from __future__ import annotations

import io
import os
import random
import signal
import traceback
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout

import pytest

from planc.trainer.run import worker
from tests.faults import forked, nth
from tests.faults.calls import CountedCalls, Fault
from tests.faults.lines import LineFault, drawn
from tests.faults.nth import Place, Site
from tests.trainer.moving import MovingRuntime
from tests.trainer.stand_in import lowering_to

RANK = "rank 0"


class InProcess:
    """Runs of the worker's main in this process."""

    def prepare(self, stack: str) -> None:
        pass

    def run(self, place: Place, words: Sequence[str], who: str, fault: Fault | LineFault) -> tuple[int | None, str]:
        said, status = io.StringIO(), 1
        assert isinstance(fault, Fault)
        os.environ.update(place.environ)
        arguments = ["--preset", str(place.preset), "--target", place.site.stack, "--receipt", str(place.receipt)]
        with redirect_stdout(said), redirect_stderr(said):
            calls = CountedCalls(fault if who else Fault(), place.logs / f"{RANK.replace(' ', '-')}.calls")
            with calls.installed():
                try:
                    status = worker.main([*arguments, *words])
                except Exception:
                    traceback.print_exc()
        return status, said.getvalue()

    def learn(self, place: Place) -> None:
        pass

    def orphans(self) -> list[int]:
        return []


class NumpyForks(InProcess):
    """Runs of the worker's main in forks: a line that fails may leave a lock or a thread behind."""

    def run(self, place: Place, words: Sequence[str], who: str, fault: Fault | LineFault) -> tuple[int | None, str]:
        arguments = ["--preset", str(place.preset), "--target", place.site.stack, "--receipt", str(place.receipt)]

        def main() -> int:
            with forked.Planted(who, fault, place.logs)(RANK):
                return worker.main([*arguments, *words])

        environ = {**os.environ, **place.environ}
        return forked.ended(forked.Forked(main, environ, dies_with_parent=True), within_s=120)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "lower_plan", lowering_to(MovingRuntime()))
        for name in ("PLANC_CACHE", "TMPDIR"):
            patch.setenv(name, os.environ.get(name, "/tmp"))
        yield Site(tmp_path_factory.mktemp("nth") / "cuda", "cuda", InProcess())
    signal.signal(signal.SIGTERM, before)


def strike_all(site: Site, scenario: str, *, each_line_once: bool) -> None:
    counted = site.counted(scenario)
    chosen = list(nth.faults(counted, seed=0, each_line_once=each_line_once))
    done = [nth.strike(site, scenario, who, fault) for who, fault in chosen]
    assert [trial.line for trial in done if trial.wrong] == []
    assert len([trial for trial in done if trial.call]) >= 20


def test_no_line_whose_call_fails_loses_or_bends_a_run(site: Site) -> None:
    strike_all(site, "fresh", each_line_once=True)


@pytest.mark.long
@pytest.mark.parametrize(("scenario", "each_line_once"), [("fresh", False), ("resumed", True)])
def test_no_call_that_fails_loses_or_bends_a_run(site: Site, scenario: str, each_line_once: bool) -> None:
    strike_all(site, scenario, each_line_once=each_line_once)


def refuse_memory(site: Site, count: int, seed: int) -> None:
    dice = random.Random(seed)
    site.runner = NumpyForks()
    try:
        (counted,) = site.lines("fresh").values()
        done = [nth.strike(site, "fresh", RANK, drawn(counted, dice)) for _ in range(count)]
    finally:
        site.runner = InProcess()
    assert [trial.line for trial in done if trial.wrong] == []
    assert len([trial for trial in done if trial.call]) > count / 2


@pytest.mark.long
def test_memory_that_is_refused_anywhere_loses_and_bends_nothing(site: Site) -> None:
    refuse_memory(site, 20, seed=2)
