"""Every call of the system that a run makes, made to fail in turn: the run goes on and is right, or ends with a code;
what is on the disk is whole, and `--resume` comes to the losses and tensors of a run that nothing happened to.

These runs are made by numpy in this process; `make nth-call` does the same to launches on both stacks."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator

import pytest

from tests.faults import nth
from tests.faults.lines import drawn
from tests.faults.nth import Site
from tests.faults.numpy_runs import RANK, InProcess, NumpyForks, numpy_runtime


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch, numpy_runtime():
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
