"""The runner: it survives what an input does, makes failing inputs small, and goes on where it was."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from tests.fuzz import run as runner
from tests.fuzz.kinds import Kind
from tests.fuzz.shrink import smaller
from tests.fuzz.tally import Sums, stretches, summed, written
from tests.fuzz.worker import Limits, Worker

WORDS = ("fine", "compute", "sleep", "die", "fill", "raise", "fine")
LIMITS = Limits(cpu_s=0.1, asleep_s=0.4, memory_bytes=2 << 30)


def act(data: bytes, folder: Path, index: int) -> tuple[str, ...]:
    """Do as the input says."""
    for word in data.decode().split():
        if word == "compute":
            while True:
                index += 1
        if word == "sleep":
            time.sleep(100)
        if word == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if word == "fill":
            bytearray(8 << 30)
        if word == "raise":
            raise KeyError(word)
    (folder / "left behind").write_text("")
    return ("fine",)


KIND = Kind("acts", ".txt", "lines", 7, lambda seed, index: WORDS[index].encode(), act)


def test_no_input_stops_the_run() -> None:
    found = list(Worker(KIND, LIMITS).numbered(1, 0, len(WORDS)))
    assert [o.index for o in found] == list(range(len(WORDS)))
    assert [o.labels for o in found] == [("fine",), (), (), (), (), (), ("fine",)]
    failures = [o.failure.split(" at ")[0] for o in found]
    assert failures == [
        "",
        "hang",
        "hang: asleep for 0.4 s, stopped from outside",
        "the process died",
        "MemoryError",
        "KeyError",
        "",
    ]


def test_a_failing_input_is_made_small() -> None:
    parts = [str(n).encode() for n in range(40)]
    assert smaller(parts, lambda kept: {b"7", b"31"} <= set(kept)) == [b"7", b"31"]
    assert smaller(parts, lambda kept: True) == []
    text = b"fine\nfine\nraise\nfine\n"
    outcome = Worker(KIND, LIMITS).given(text)
    assert runner.shrunk(KIND, text, outcome) == b"raise\n"


def test_the_run_goes_on_where_it_was(tmp_path: Path) -> None:
    state, results = tmp_path / "state.jsonl", tmp_path / "results.toml"
    kind = Kind("plain", ".txt", "lines", 5, lambda seed, index: b"fine", act)
    runner.fuzz(kind, 1, 0, 3, state)
    results.write_text(written(summed(state, results), {}))
    assert summed(state, results) == summed(tmp_path / "gone", results) == {"plain": summed(state, results)["plain"]}
    runner.fuzz(kind, 1, 3, 2, state)
    runner.fuzz(kind, 2, 0, 1, state)
    with state.open("a") as file:
        file.write('{"kind": "plain", "seed": 2, "sta')
    assert [(s["seed"], s["start"], s["stop"]) for s in stretches(state)] == [(1, 0, 3), (1, 3, 5), (2, 0, 1)]
    both = summed(state, results)["plain"]
    assert (both.seeds, both.inputs, both.reached) == ({"1": 5, "2": 1}, 6, {"fine": 6})
    assert runner.campaign([kind], 2, state, None, 60)


def test_failures_are_counted_by_their_kind() -> None:
    sums, failures = Sums(), [{"failure": "KeyError at a.py:f"}, {"failure": "hang at b.py:g"}]
    stretch = {"seed": 1, "start": 0, "stop": 9, "reached": {"x": 7}, "slowest_s": 1.5, "failures": failures}
    sums.add(json.loads(json.dumps(stretch)))
    sums.add(json.loads(json.dumps(stretch)))
    assert (sums.inputs, sums.tracebacks, sums.hangs, sums.slowest_s) == (9, 1, 1, 1.5)
