"""`make nth-call`, `memory`, `cut`, `kills`, `moments`: faults in forks of one process, on both stacks, in a file.

    python tests/faults/long.py nth --stack cuda --state build/faults.jsonl
    python tests/faults/long.py kills --stack xla --state build/faults.jsonl --count 250

A run that was interrupted goes on where it was: what the file holds is not done again. `summary` writes the sums of a
file into tests/faults/results.toml, where the sums of what the file does not hold stay.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.faults import kills, moments, nth, sockets  # noqa: E402
from tests.faults.forked import Forks  # noqa: E402
from tests.faults.lines import drawn  # noqa: E402
from tests.faults.nth import Trial  # noqa: E402
from tests.faults.numpy_runs import NumpyForks, numpy_runtime  # noqa: E402

RESULTS = ROOT / "tests" / "faults" / "results.toml"
KILL_STEPS = 8


def nth_trials(site: nth.Site, seed: int, done: set[str]) -> Iterator[Trial]:
    """A fault in each call of each process, in both scenarios; the last call of each line of planc comes first."""
    counted = {scenario: site.counted(scenario) for scenario in nth.SCENARIOS}
    for each_line_once in (True, False):
        for scenario in nth.SCENARIOS:
            for who, fault in nth.faults(counted[scenario], seed, each_line_once):
                if (name := Trial(site.stack, scenario, who, fault.number, fault.error).name) not in done:
                    done.add(name)
                    yield nth.strike(site, scenario, who, fault)


def memory_trials(site: nth.Site, seed: int, count: int, before: int) -> Iterator[Trial]:
    """Memory refused at lines drawn of each process in turn, until so many have been struck."""
    counted = {scenario: site.lines(scenario) for scenario in nth.SCENARIOS}
    dice = random.Random(f"{seed} {site.stack} {before}")
    while before < count:
        scenario = dice.choice(nth.SCENARIOS)
        who = dice.choice(sorted(counted[scenario]))
        trial = nth.strike(site, scenario, who, drawn(counted[scenario][who], dice))
        before += bool(trial.call)
        yield trial


def socket_trials(site: nth.Site, seed: int, count: int, before: int) -> Iterator[Trial]:
    """Connections that are cut at calls drawn of each process in turn, until so many have been struck."""
    counted = {scenario: site.sockets(scenario) for scenario in nth.SCENARIOS}
    print("calls of sockets:", counted, flush=True)
    dice = random.Random(f"{seed} sockets {site.stack} {before}")
    while before < count:
        scenario = dice.choice(nth.SCENARIOS)
        who = dice.choice(sorted(counted[scenario]))
        trial = nth.strike(site, scenario, who, sockets.drawn(counted[scenario][who], dice))
        before += bool(trial.call)
        yield trial


def kill_trials(site: nth.Site, forks: Forks, seed: int, count: int, before: int) -> Iterator[Trial]:
    """Starts that are killed, until so many have been struck."""
    chain = kills.Chain(site, forks, random.Random(f"{seed} {site.stack} {before}"))
    while before < count:
        kill = chain.next()
        before += kill.struck
        yield kill


def moment_trials(chain: moments.Moments, count: int, before: int) -> Iterator[Trial]:
    """Starts that are struck in a load, in a save, ... until so many have been."""
    while before < count:
        trial = chain.next()
        before += trial.struck
        yield trial


def records(state: Path) -> list[dict[str, Any]]:
    """The trials noted so far."""
    return [json.loads(line) for line in state.read_text().splitlines()] if state.exists() else []


def summary(found: list[dict[str, Any]], before: str = "") -> str:
    """The sums as TOML, with those tables of the text `before` of which nothing was found."""
    head = "# Written by `python tests/faults/long.py summary`: faults in forks of one process, summed over runs.\n\n"
    tables = {name: f"[{name}]{rest}\n" for name, rest in re.findall(r"^\[(.+)\]((?:\n.+)*)", before, re.MULTILINE)}
    return head + "\n".join(text for _, text in sorted({**tables, **dict(_tables(found))}.items()))


def _tables(found: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """The name and the text of the table of each kind and stack."""
    for kind, stack in sorted({(r["kind"], r["stack"]) for r in found}):
        these = [r for r in found if (r["kind"], r["stack"]) == (kind, stack)]
        lines = [f"[{kind}.{stack}]", f'day = "{datetime.now(UTC).date().isoformat()}"']
        struck = [r for r in these if (r["struck"] if kind in ("kill", "moment") else r["call"])]
        wrong = [what for r in these for what in r["wrong"]]
        lines += [f"struck = {len(struck)}"]
        if kind == "kill":
            lines += [f"inside_a_save = {sum(r['inside_save'] for r in struck)}"]
            lines += [f"ended_before_its_moment = {len(these) - len(struck)}"]
            tenths = Counter(int(r["share"] * 10) for r in struck)
            lines += [f"by_tenth_of_the_run = {[tenths[n] for n in range(10)]}"]
        elif kind == "moment":
            deeds = Counter(r["who"] for r in struck)
            lines += [f'"{deed}" = {deeds[deed]}' for deed in moments.DEEDS]
        else:
            lines += [f"went_on = {sum(r['ended'] == 'went on' for r in struck)}"]
            lines += [f"refused = {sum(r['ended'] != 'went on' for r in struck)}"]
            lines += [f"calls = {len({(r['scenario'], r['who'], r['number']) for r in struck})}"]
        lines += [f"lost = {sum('was saved, and the newest' in w for w in wrong)}"]
        lines += [f"wrong_resumes = {sum('differ' in w for w in wrong)}"]
        lines += [f"hangs = {sum(w.startswith('it hung') for w in wrong)}"]
        lines += [f"orphans = {sum(w.endswith('is left') for w in wrong)}"]
        lines += [f"trials_with_a_finding = {sum(bool(r['wrong']) for r in these)}"]
        yield f"{kind}.{stack}", "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="faults")
    parser.add_argument("what", choices=("nth", "memory", "sockets", "kills", "moments", "summary"))
    parser.add_argument("--stack", choices=("cuda", "xla", "numpy"))
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "faults.jsonl")
    parser.add_argument("--seed", type=int, default=20261123)
    parser.add_argument("--count", type=int, default=250, help="kills or refusals to come to")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    found = records(options.state)
    if options.what == "summary":
        text = summary(found, options.results.read_text() if options.results.exists() else "")
        options.results.write_text(text)
        print(text)
        return 0
    if options.what == "sockets":
        sockets.with_shim()
    options.state.parent.mkdir(parents=True, exist_ok=True)
    done = [r for r in found if r["stack"] == options.stack]
    wrong, end = 0, time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory(prefix="planc-faults-") as root, ExitStack() as within:
        steps = nth.STEPS if options.what == "nth" else KILL_STEPS
        forks = Forks(Path(root))
        runner: nth.Runner = forks
        if options.stack == "numpy":
            within.enter_context(numpy_runtime())
            runner = NumpyForks()
        site = nth.Site(Path(root) / options.stack, options.stack, runner, steps)
        if options.what == "nth":
            names = {f"{r['stack']} {r['scenario']} {r['who']} {r['number']} {r['error']}" for r in done}
            trials = nth_trials(site, options.seed, names)
        elif options.what == "memory":
            before = sum(bool(r["call"]) for r in done if r["kind"] == "memory")
            trials = memory_trials(site, options.seed, options.count, before)
        elif options.what == "sockets":
            before = sum(bool(r["call"]) for r in done if r["kind"] == "socket")
            trials = socket_trials(site, options.seed, options.count, before)
        elif options.what == "moments":
            before = sum(r["struck"] for r in done if r["kind"] == "moment")
            dice = random.Random(f"{options.seed} moments {site.stack} {before}")
            chain = within.enter_context(closing(moments.Moments(site, forks, dice, before)))
            trials = moment_trials(chain, options.count, before)
        else:
            before = sum(r["struck"] for r in done if r["kind"] == "kill")
            trials = kill_trials(site, forks, options.seed, options.count, before)
        for trial in trials:
            print(trial.line, flush=True)
            with options.state.open("a") as file:
                file.write(json.dumps(kills.as_json(trial)) + "\n")
            wrong += bool(trial.wrong)
            if time.monotonic() > end:
                break
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
