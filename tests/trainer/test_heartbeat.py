"""The rank that the others wait for is named, by each of the ways to tell."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict

import pytest

from planc.trainer.run import launch
from planc.trainer.run.heartbeat import MARK, Heartbeat, HeartbeatSender, Watchdog


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def watched(*rounds: dict[int, Heartbeat]) -> tuple[int, str] | None:
    """The stuck rank that a watch of three ranks finds when each round of beats comes a second after the last."""
    clock = Clock()
    watchdog = Watchdog(3, 10.0, clock)
    for beats in rounds:
        clock.now += 1
        for rank, beat in beats.items():
            assert watchdog.receive(rank, MARK + json.dumps(asdict(beat)))
    return watchdog.stuck()


STEP = Heartbeat(7, "step 3", "c10d.py:9 all_reduce")


def test_ranks_that_move_are_left_alone() -> None:
    assert watched(*({r: Heartbeat(n, "step", "a") for r in range(3)} for n in range(30))) is None


def test_a_long_step_is_no_hang() -> None:
    assert watched(*([dict.fromkeys(range(3), STEP)] * 10)) is None


def test_a_start_may_take_longer_than_a_step() -> None:
    assert watched(*({r: Heartbeat(0, "start", f"torch.py:{n} <module>") for r in range(3)} for n in range(30))) is None
    assert watched(*([{r: Heartbeat(0, "start", "rendezvous.py:3 wait") for r in range(3)}] * 30)) is not None


def test_a_silent_rank_is_named() -> None:
    found = watched(dict.fromkeys(range(3), STEP), *([{0: STEP, 1: STEP}] * 12))
    assert found is not None
    assert found[0] == 2
    assert "rank 2 has been silent for 12 s (step 3" in found[1]


def test_a_rank_that_is_behind_is_named() -> None:
    behind = Heartbeat(6, "the data of step 3", "data.py:4 batch")
    found = watched(*([{0: STEP, 1: behind, 2: STEP}] * 13))
    assert found is not None
    assert found[0] == 1
    assert "the others wait for rank 1 (the data of step 3, data.py:4 batch)" in found[1]


def test_a_rank_at_another_place_is_named() -> None:
    found = watched(*([{0: STEP, 1: STEP, 2: Heartbeat(7, "step 3", "model.py:80 forward")}] * 13))
    assert found is not None
    assert found[0] == 2
    assert "rank 2: step 3, model.py:80 forward" in found[1]


def test_other_output_is_no_beat() -> None:
    assert not Watchdog(1, 1.0).receive(0, "a warning")


def test_a_pulse_says_where_the_main_thread_is() -> None:
    lines: list[str] = []
    sender = HeartbeatSender(lines.append)
    sender.now("step 1")
    limit = time.monotonic() + 20
    while len(lines) < 2:
        assert time.monotonic() < limit
        time.sleep(0.05)
    beat = Heartbeat(**json.loads(lines[1].removeprefix(MARK)))
    assert (beat.phases, beat.doing) == (1, "step 1")
    assert "test_a_pulse_says_where_the_main_thread_is" in beat.line


@pytest.mark.parametrize("said", [None, (1, "it sleeps")])
def test_a_launch_ends_when_a_rank_is_stuck(said: tuple[int, str] | None) -> None:
    seconds = "60" if said else "0.1"
    code = [sys.executable, "-c", f"import time; time.sleep({seconds})"]
    done = launch.run(code, 2, stuck=lambda: said)
    assert (done.returncode, done.failed_rank, done.why) == ((124, 1, "it sleeps") if said else (0, None, ""))
