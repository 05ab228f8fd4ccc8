"""`make fuzz`: run many inputs of every kind through planc, in a process that hangs and crashes do not stop.

It goes on where the state file and the committed results end, until each kind has its number of inputs. A failing
input is kept beside the state file; a small one with the same failure goes into tests/fuzz/corpus/, which the tests
replay.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.fuzz.kinds import Kind, corpus, joined, kinds, split  # noqa: E402
from tests.fuzz.shrink import smaller  # noqa: E402
from tests.fuzz.tally import RESULTS, summed, written  # noqa: E402
from tests.fuzz.worker import Outcome, Worker  # noqa: E402

STRETCH = 500
"""Inputs between two lines of the state file."""


def fuzz(kind: Kind, seed: int, start: int, count: int, state: Path) -> Counter[str]:
    """Run `count` inputs and add them to the state file. Returns how far they came, and failures by what they say."""
    worker, reached, failures = Worker(kind), Counter[str](), list[dict[str, Any]]()
    slowest = (0.0, start)
    for outcome in worker.numbered(seed, start, start + count):
        reached.update(outcome.labels)
        slowest = max(slowest, (outcome.cpu_s, outcome.index))
        if outcome.failure:
            known = {f["failure"] for f in failures}
            failures.append({"index": outcome.index, "failure": outcome.failure})
            if outcome.failure not in known:
                keep(kind, seed, outcome, state)
    line = {
        "kind": kind.name, "seed": seed, "start": start, "stop": start + count, "reached": reached,
        "slowest_s": slowest[0], "slowest": slowest[1], "failures": failures,
    }  # fmt: skip
    with state.open("a") as file:
        file.write(json.dumps(line) + "\n")
    return reached + Counter(f["failure"] for f in failures)


def keep(kind: Kind, seed: int, outcome: Outcome, state: Path) -> None:
    """Keep a failing input as it is and made small, and print what happened."""
    data = kind.make(seed, outcome.index)
    folder = state.parent / "failures" / kind.name
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{seed}_{outcome.index}"
    (folder / (name + kind.suffix)).write_bytes(data)
    (folder / f"{name}.txt").write_text(f"{outcome.failure}\n{outcome.trace}")
    print(f"{kind.name} {seed}:{outcome.index}: {outcome.failure}", flush=True)
    digest = hashlib.sha256(outcome.failure.encode()).hexdigest()[:10]
    place = Path(__file__).parent / "corpus" / kind.name / f"{digest}{kind.suffix}"
    if not place.exists() and (small := shrunk(kind, data, outcome)) is not None:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(small)


def shrunk(kind: Kind, data: bytes, outcome: Outcome) -> bytes | None:
    """A smaller input with the same failure; None when the input alone does not fail."""
    worker = Worker(kind)

    def fails(parts: list[bytes]) -> bool:
        return worker.given(joined(kind, parts), outcome.index).failure == outcome.failure

    parts = split(kind, data)
    if not fails(parts):
        return None
    return joined(kind, smaller(parts, fails, 30 if "hang" in outcome.failure else 300))


def failing(chosen: list[Kind]) -> Counter[str]:
    """Run what once failed; by kind the number of inputs that still do."""
    still = Counter[str]()
    for kind in chosen:
        kind.warm()
        for path in corpus(kind):
            found = Worker(kind).given(path.read_bytes())
            if found.failure:
                still[kind.name] += 1
                print(f"{path.relative_to(ROOT)}: {found.failure}")
    print(f"{still.total()} inputs of the corpus fail")
    return still


def strings(seed: int, count: int | None, state: Path, language: str | None = None) -> bool:
    """Hostile strings in `language`, or in each in turn, up to 100,000 or `count` more. False when one escapes."""
    from tests.fuzz.strings import GOAL, LANGUAGES, escaping, hostile

    sums, good, names = summed(state), True, [language] if language else [*LANGUAGES]
    done = {n: sums[f"strings-{n}"].seeds.get(str(seed), 0) if f"strings-{n}" in sums else 0 for n in names}
    end = {n: at + count if count is not None else GOAL for n, at in done.items()}
    while left := [n for n in names if done[n] < end[n]]:
        for name in left:
            start, stop = done[name], min(done[name] + STRETCH, end[name])
            done[name] = stop
            wrong = escaping(name, [hostile(seed, index) for index in range(start, stop)])
            line = {"kind": f"strings-{name}", "seed": seed, "start": start, "stop": stop, "slowest_s": 0.0}
            failures = [{"failure": f"escapes: {text!a}"} for text in wrong]
            with state.open("a") as file:
                reached = {"held": stop - start - len(wrong)}
                file.write(json.dumps({**line, "reached": reached, "failures": failures}) + "\n")
            good &= not wrong
            for failure in failures:
                print(f"{name} {failure['failure']}", flush=True)
    return good


def table(state: Path, chosen: list[Kind]) -> str:
    """The sums, as lines to read."""
    lines = []
    every = summed(state)
    for name in (k.name for k in chosen if k.name in every):
        sums = every[name]
        total = max(sums.inputs, 1)
        lines.append(f"{name}: {sums.inputs:,} inputs, {sums.tracebacks} tracebacks, {sums.hangs} hangs, ")
        lines[-1] += f"slowest {sums.slowest_s:.1f} s"
        lines += [f"  {label:<28} {n:>9,} {100 * n / total:5.1f} %" for label, n in sums.reached.most_common()]
    return "\n".join(lines)


def campaign(chosen: list[Kind], seed: int, state: Path, count: int | None, seconds: float) -> bool:
    """Stretches of each kind in turn until all have their number of inputs, or time is up. False after a failure."""
    for kind in chosen:
        kind.warm()
    begin, good = time.monotonic(), True
    sums = summed(state)
    done = {k.name: sums[k.name].seeds.get(str(seed), 0) if k.name in sums else 0 for k in chosen}
    others = {k.name: (sums[k.name].inputs if k.name in sums else 0) - done[k.name] for k in chosen}
    end = {k.name: done[k.name] + count if count is not None else k.goal - others[k.name] for k in chosen}
    while left := [k for k in chosen if done[k.name] < end[k.name]]:
        for kind in left:
            if time.monotonic() - begin > seconds:
                return good
            step = min(STRETCH, end[kind.name] - done[kind.name])
            reached = fuzz(kind, seed, done[kind.name], step, state)
            done[kind.name] += step
            good &= not any(" at " in label or "hang" in label or "died" in label for label in reached)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", action="append", choices=sorted(kinds()), help="one kind; may be given again")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, help="inputs of each kind beyond those that are done; else up to its goal")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--state", type=Path, default=ROOT / "runs" / "fuzz" / "state.jsonl")
    parser.add_argument("--replay", action="store_true", help="run the corpus only")
    parser.add_argument("--strings", action="store_true", help="only hostile strings in every language")
    parser.add_argument("--language", help="with --strings: in this one alone, a name of results.toml after strings-")
    parser.add_argument("--results", action="store_true", help="only add what the state file has to results.toml")
    parser.add_argument("--coverage", action="store_true", help="only print the lines reached, by room")
    options = parser.parse_args()
    chosen = [kind for name, kind in kinds().items() if not options.kind or name in options.kind]
    options.state.parent.mkdir(parents=True, exist_ok=True)
    if options.replay:
        return 1 if failing(chosen) else 0
    if options.coverage:
        from tests.fuzz.reached_lines import by_room

        print(by_room(chosen, options.seed, options.count or 1000))
        return 0
    if options.strings:
        return 0 if strings(options.seed, options.count, options.state, options.language) else 1
    if options.results:
        RESULTS.write_text(written(summed(options.state), failing(chosen)))
        return 0
    good = campaign(chosen, options.seed, options.state, options.count, options.seconds)
    print(table(options.state, chosen))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
