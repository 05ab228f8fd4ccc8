"""The share of this machine's processors that other work had, from counters that are written by hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from planc.calibration import cpu_contention as quiet
from planc.calibration.cpu_contention import ContentionMeter, own_s, taken_s
from planc.trainer.measure.coordinator import Measurement

TICKS = os.sysconf("SC_CLK_TCK")


def counted(path: Path, *seconds: float) -> Path:
    """A file like /proc/stat: user, nice, system, idle, waiting, irq, soft irq, stolen, guest."""
    path.write_text(f"cpu  {' '.join(str(int(s * TICKS)) for s in seconds)}\ncpu0 1 2 3\n")
    return path


def test_idle_time_and_waiting_for_disks_are_nobodys_work(tmp_path: Path) -> None:
    assert taken_s(counted(tmp_path / "stat", 1, 2, 4, 1000, 1000, 8, 16, 32, 500)) == 63


def test_what_our_processes_did_not_take_others_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter((100.0, 104.0))
    monkeypatch.setattr(quiet, "perf_counter", lambda: next(now))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    meter = ContentionMeter(counted(tmp_path / "stat", 10, 0, 0, 0, 0, 0, 0, 0))
    counted(tmp_path / "stat", 14, 0, 1, 2, 0, 0, 0, 1)
    assert meter.others_share(own_s=4.0) == pytest.approx(2 / 8)  # of 4 s on 2 processors: 6 s taken, 4 of them ours


class Four:
    """Four processes that each took as much."""

    first, count = True, 4

    def __init__(self, on_host: bool) -> None:
        self.on_host = on_host

    def sum(self, value: float) -> float:
        return 4 * value


@pytest.mark.parametrize(("on_host", "share"), [(True, 2 / 8), (False, 0.0)])
def test_what_all_processes_took_together_is_ours(
    on_host: bool, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter((100.0, 104.0))
    monkeypatch.setattr(quiet, "perf_counter", lambda: next(now))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    meter = ContentionMeter(counted(tmp_path / "stat", 10, 0, 0, 0, 0, 0, 0, 0))
    counted(tmp_path / "stat", 16, 0, 0, 2, 0, 0, 0, 0)
    assert meter.share_beside(Four(on_host), 1.0) == pytest.approx(share)


def test_nothing_is_known_of_a_moment(tmp_path: Path) -> None:
    """Counters go by hundredths of a second: what they say of less than a few dozen is chance."""
    meter = ContentionMeter(counted(tmp_path / "stat", 10, 0, 0, 0, 0, 0, 0, 0))
    counted(tmp_path / "stat", 20, 0, 0, 0, 0, 0, 0, 0)
    assert meter.others_share(own_s=0.0) == 0.0


def test_nothing_is_known_without_counters(tmp_path: Path) -> None:
    assert ContentionMeter(tmp_path / "none").others_share(own_s=0.0) == 0.0


def test_windows_without_what_others_took() -> None:
    assert own_s([1.0, 1.2, 1.4], share=0.0) == 1.0
    assert own_s([1.0, 1.2, 1.4], share=0.5) == pytest.approx(0.6)


def test_the_least_disturbed_step_counts_without_what_others_took() -> None:
    found = Measurement((), {"x": (4.0, 3.0, 2.5)}, others={"x": (0.75, 0.25, 0.5)})
    assert found.step_s("x") == 2.25 and found.disturbed("x") == 0.25
    calm = Measurement((), {"x": (1.0, 2.0, 2.2)}, others={"x": (0.5, 0.0, 0.0)})
    assert calm.step_s("x") == 2.0 and calm.disturbed("x") == 0.0
    assert Measurement((), {"x": (3.0, 2.0)}).step_s("x") == 2.0
