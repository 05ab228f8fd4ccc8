"""`make random`: draw valid plans, and check every promise on each; with `--train`, train some beside one process.

`--physics`, `--extreme` and `--axis-of-one` check one law instead. The state file has a line for each plan, and a later
run goes on after it. A plan that breaks a promise is shrunk, and kept under runs/random/ with what happened; mended, it
belongs in tests/random_plans/corpus/.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from planc.driver import examine  # noqa: E402
from planc.ir.target import TARGETS  # noqa: E402
from tests.random_plans import axis_of_one, coverage, extremes, physics, state  # noqa: E402
from tests.random_plans.draw import draw  # noqa: E402
from tests.random_plans.pieces import Drawn  # noqa: E402
from tests.random_plans.programs import keep as write_programs  # noqa: E402
from tests.random_plans.programs import linted, typed  # noqa: E402
from tests.random_plans.promises import Outcome, prove, write  # noqa: E402
from tests.random_plans.shrink import shrink  # noqa: E402

STATE, FAILURES = ROOT / "runs" / "random.jsonl", ROOT / "runs" / "random"
RESULTS = Path(__file__).with_name("results.toml")
SMALL, THOROUGH = 4, 10
"""One plan in so many is small enough to be trained; in one of so many every promise is checked, in others most."""


def drawn_of(seed: int) -> Drawn:
    """The plan of a seed of the campaign."""
    return draw(seed, small=seed % SMALL == 0)


def failure(drawn: Drawn) -> str:
    """The last line of what went wrong with a plan, without its numbers; empty when nothing did."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            prove(drawn, Path(folder))
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            return f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
    return ""


def keep(drawn: Drawn, why: str, folder: Path) -> None:
    """Write a failing plan, shrunk, with its reason."""
    same = failure(drawn)
    small = shrink(drawn, lambda other: failure(other) == same) if same else drawn
    write(small, folder / drawn.name)
    (folder / drawn.name / "why.txt").write_text(f"{why}\n\nas drawn:\n{drawn.text}")


def line_of(seed: int, folder: Path, failures: Path, programs: Path | None = None) -> tuple[state.Line, set[str]]:
    """Check the plan of a seed: its line for the state file, and the parts of the language that it reached.

    Its programs are written into a folder, if there is one.
    """
    drawn, began = drawn_of(seed), time.process_time()
    try:
        outcome = prove(drawn, folder, thorough=seed % THOROUGH == 0)
    except Exception as error:
        keep(drawn, traceback.format_exc(), failures)
        codes, kind = [type(error).__name__], "broken"
        outcome = Outcome()
    else:
        kind, codes = outcome.kind, _codes(outcome)
        if programs:
            write_programs(outcome.texts, seed, programs)
    line = {"part": "checked", "seed": seed, "outcome": kind, "lowered": outcome.lowered, "codes": codes}
    return {**line, "seconds": round(time.process_time() - began, 2)}, coverage.reached(drawn)


def _codes(outcome: Outcome) -> list[str]:
    """Codes of the plan's own errors, and of each target's refusals."""
    own = set(outcome.errors)
    refused = [f"{target} {code}" for target, codes in outcome.refused.items() for code in codes if code not in own]
    return [*outcome.errors, *refused]


def check_all(path: Path, count: int, seconds: float, failures: Path, first: int, *, with_types: bool) -> int:
    """Check so many more plans, and all their programs together with ruff, and mypy if `with_types`; returns the number
    that broke a promise, and the lines of both."""
    done, seen, broken, checked = state.done(path, "checked"), set[str](), 0, 0
    begin, seed, warm_mib = time.monotonic(), first, 0.0
    folder, programs = (Path(tempfile.mkdtemp(prefix="random-plans-")) for _ in range(2))
    while checked < count and time.monotonic() - begin < seconds:
        if seed not in done:
            line, parts = line_of(seed, folder, failures, programs)
            shutil.rmtree(folder)
            state.add(path, line)
            seen |= parts
            checked += 1
            if checked == min(100, count):
                warm_mib = _held_mib()
            if line["outcome"] == "broken":
                broken += 1
                print(f"seed {seed}: {line['codes'][0]}, kept in {failures}", flush=True)
        seed += 1
    said = linted(programs) + (typed(programs) if with_types else [])
    held = f"{warm_mib:.0f} MiB after the first 100, {_held_mib():.0f} at the end"
    print(f"{checked:,} plans in {time.monotonic() - begin:.0f} s, {broken} broken promises; {held}")
    print(
        f"{len(list(programs.glob('*/*.py'))):,} programs in {programs}, {len(said)} lines of ruff and mypy",
        *said,
        sep="\n",
    )
    if checked:
        print(coverage.summary(seen))
    return broken + len(said)


def _held_mib() -> float:
    """Memory of this process (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def _no_axis(seed: int, folder: Path) -> bool:
    return axis_of_one.hold(seed, drawn_of(seed), folder, thorough=seed % THOROUGH == 0)


def _physical(seed: int, folder: Path) -> bool:
    examined = examine(write(drawn_of(seed), folder))
    found = physics.broken(examined)
    assert not found, "\n".join(found)
    return examined.costed is not None


def _all_views(seed: int, folder: Path) -> bool:
    extremes.views(write(extremes.draw(seed), folder))
    return True


LAWS: dict[str, Callable[[int, Path], bool]] = {
    "an axis of one rank": _no_axis,
    "physics": _physical,
    "every view": _all_views,
}
"""Laws of a plan: True if it holds on that of a seed, False where it asks nothing. Raises what is broken."""


def check_law(law: str, path: Path, count: int, seconds: float, first: int) -> int:
    """Check a law on so many more plans; returns the number that broke it."""
    done, begin, broken, seed, checked = state.done(path, law), time.monotonic(), 0, first, 0
    while checked < count and time.monotonic() - begin < seconds:
        if seed not in done:
            since, codes = time.process_time(), list[str]()
            with tempfile.TemporaryDirectory() as folder:
                try:
                    outcome = "held" if LAWS[law](seed, Path(folder)) else "refused"
                except Exception as error:
                    outcome, codes = "broken", [type(error).__name__]
                    print(f"seed {seed}:\n{traceback.format_exc(limit=-1)}", flush=True)
            spent = round(time.process_time() - since, 2)
            state.add(path, {"part": law, "seed": seed, "outcome": outcome, "codes": codes, "seconds": spent})
            checked, broken = checked + 1, broken + (outcome == "broken")
        seed += 1
    return broken


def shares(path: Path) -> str:
    """How many plans a target lowers, and how many have no error for it."""
    rows = [line for line in state.lines(path) if line["part"] == "checked"]
    lowered = [row for row in rows if row["outcome"] == "lowered"]
    clean = [row for row in lowered if not any(" " not in code for code in row["codes"])]
    targets = Counter(target for row in lowered for target in row["lowered"])
    each = ", ".join(f"{target} {n:,}" for target, n in targets.items())
    share = len(lowered) / max(1, len(rows))
    return f"lowered {len(lowered):,} of {len(rows):,} ({share:.1%}; {each}); {len(clean):,} of them without any error"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=Path, default=STATE)
    parser.add_argument("--count", type=int, default=2000, help="further plans")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--train", action="store_true", help="train plans on both stacks instead of checking them")
    parser.add_argument("--first-step", action="store_true", help="trace or compile a step of each, without its ranks")
    parser.add_argument("--typed", action="store_true", help="have mypy check the programs too")
    parser.add_argument("--stack", choices=TARGETS, help="with --train or --first-step: on this stack alone")
    parser.add_argument("--first", type=int, default=0, help="the first seed, after those that results.toml counts")
    parser.add_argument(
        "--pairs", action="store_true", help="tell which pairs of features were trained, by results.toml and the state"
    )
    parser.add_argument("--record", metavar="DATE", help="append the state's counts to results.toml, and stop")
    parser.add_argument("--show", type=int, help="print the plan of this seed, and its line")
    parser.add_argument("--failures", type=Path, default=FAILURES)
    for law, option in zip(LAWS, ("--axis-of-one", "--physics", "--extreme"), strict=True):
        parser.add_argument(option, dest="law", action="store_const", const=law, help=f"check the law of {law} instead")
    options = parser.parse_args()
    if options.record:
        state.record(options.state, RESULTS, options.record)
        return 0
    if options.pairs:
        from tests.random_plans.pairs import table
        from tests.random_plans.train import STACKS, recorded

        for stack in STACKS:
            rows = [line for line in state.lines(options.state) if line["part"] == f"trained on {stack}"]
            print(f"{stack}: {table([*recorded(RESULTS, stack), *rows], stack)}")
        return 0
    if options.show is not None:
        drawn = drawn_of(options.show)
        print(drawn.text, *drawn.files.values(), sep="\n")
        print(json.dumps(line_of(options.show, Path(tempfile.mkdtemp()), options.failures)[0]))
        return 0
    if options.law:
        broken = check_law(options.law, options.state, options.count, options.seconds, options.first)
        print("\n".join(state.sums(options.state)))
        return min(broken, 1)
    if options.train or options.first_step:
        from tests.random_plans.train import STACKS, Work, train_all

        stacks = (options.stack,) if options.stack else STACKS
        work: Work = "first step" if options.first_step else "trained"
        broken = train_all(options.state, options.count, options.seconds, options.first, stacks, work)
    else:
        more = {"with_types": options.typed}
        broken = check_all(options.state, options.count, options.seconds, options.failures, options.first, **more)
    print("\n".join(state.sums(options.state)))
    print(shares(options.state))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
