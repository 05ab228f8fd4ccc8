"""`make faults`: the campaign over both stacks. Prints every trial, and its seed, with which it can be repeated."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.faults import campaign, page
from tests.faults.campaign import Site, Trial

Fault = Callable[[Site, random.Random], Trial]


def _kill(moment: str) -> Fault:
    return lambda site, dice: campaign.kill(site, dice, moment)


SHARE: dict[str, list[tuple[Fault, int]]] = {
    "cuda": [
        (_kill("any"), 12),
        (_kill("save"), 6),
        (_kill("collective"), 11),
        (campaign.term, 2),
        (campaign.hang, 2),
        (campaign.full_disk, 1),
        (campaign.damage, 12),
    ],
    "xla": [
        (_kill("any"), 12),
        (_kill("save"), 6),
        (campaign.term, 2),
        (campaign.hang, 1),
        (campaign.full_disk, 1),
        (campaign.damage, 12),
    ],
}
"""How often each fault happens on each stack; in a random order. JAX's devices are one process here: no rank waits
for another."""


def trials(stack: str, dice: random.Random, share: float) -> list[Fault]:
    found = [fault for fault, count in SHARE[stack] for _ in range(max(1, round(count * share)))]
    dice.shuffle(found)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="faults")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--stack", choices=tuple(SHARE), help="this stack alone")
    parser.add_argument("--share", type=float, default=1.0, help="of the trials (1)")
    parser.add_argument("--trials", type=Path, help="note every trial here; the page is about all that are there")
    parser.add_argument("--page", type=Path, help="write the outcome into this file")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    done: list[Trial] = []
    with tempfile.TemporaryDirectory(prefix="planc-faults-") as root:
        for stack in [options.stack] if options.stack else SHARE:
            dice = random.Random(f"{options.seed} {stack}")
            for trial in _campaign(Site(Path(root, stack), stack), dice, options.share):
                done.append(trial)
                print(trial.line, flush=True)
                _noted(trial, options.trials)
    if options.trials:
        done = [Trial(**json.loads(line)) for line in options.trials.read_text().splitlines()]
    print(page.table(done))
    print(page.verdict(done))
    if options.page:
        options.page.write_text(page.text(done, options.seed, sum(t.seconds for t in done)))
    return 1 if any(trial.wrong for trial in done) else 0


def _campaign(site: Site, dice: random.Random, share: float) -> Iterator[Trial]:
    """All trials on one stack; the run that they interrupt comes to its end last."""
    for fault in trials(site.stack, dice, share):
        campaign.begin_again(site)
        if fault is campaign.damage and site.last() is None:
            yield campaign.kill(site, dice, "save")
        if site.last() is not None or fault is not campaign.damage:
            yield fault(site, dice)
    yield campaign.finish(site)


def _noted(trial: Trial, trials: Path | None) -> None:
    if trials:
        with trials.open("a") as file:
            file.write(json.dumps(asdict(trial)) + "\n")


if __name__ == "__main__":
    sys.exit(main())
