"""`make faults`: the campaign over both stacks. Prints every trial, and its seed, with which it can be repeated."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.faults import campaign
from tests.faults.campaign import Site, Trial

Fault = Callable[[Site, random.Random], Trial]


def _kill(moment: str) -> Fault:
    return lambda site, dice: campaign.kill(site, dice, moment)


SHARE: dict[str, list[tuple[Fault, int]]] = {
    "cuda": [
        (_kill("save"), 6),
        (_kill("collective"), 10),
        (_kill("start"), 4),
        (_kill("step"), 4),
        (campaign.term, 2),
        (campaign.hang, 2),
        (campaign.full_disk, 1),
        (campaign.damage, 20),
    ],
    "xla": [
        (_kill("save"), 6),
        (_kill("step"), 5),
        (_kill("start"), 4),
        (campaign.term, 2),
        (campaign.hang, 1),
        (campaign.full_disk, 1),
        (campaign.damage, 20),
    ],
}
"""How often each fault happens on each stack; in a random order."""


def trials(stack: str, dice: random.Random, share: float) -> list[Fault]:
    found = [fault for fault, count in SHARE[stack] for _ in range(max(1, round(count * share)))]
    dice.shuffle(found)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="faults")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--stack", choices=tuple(SHARE), help="this stack alone")
    parser.add_argument("--share", type=float, default=1.0, help="of the trials (1)")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    done: list[Trial] = []
    with tempfile.TemporaryDirectory(prefix="planc-faults-") as root:
        for stack in [options.stack] if options.stack else SHARE:
            dice = random.Random(f"{options.seed} {stack}")
            site = Site(Path(root, stack), stack)
            for fault in trials(stack, dice, options.share):
                campaign.begin_again(site)
                if fault is campaign.damage and site.last() is None:
                    done.append(_told(campaign.kill(site, dice, "save")))
                if site.last() is not None or fault is not campaign.damage:
                    done.append(_told(fault(site, dice)))
            done.append(_told(campaign.finish(site)))
    return _summary(done)


def _told(trial: Trial) -> Trial:
    print(trial.line, flush=True)
    return trial


def _summary(done: list[Trial]) -> int:
    wrong = [trial for trial in done if trial.wrong]
    inside = sum("inside the save" in trial.moment for trial in done)
    waiting = sum("in a collective" in trial.moment for trial in done)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(t.fault for t in done).items()))
    print(
        f"{len(done)} trials ({kinds}): {inside} kills inside a save, {waiting} inside a collective; {len(wrong)} wrong"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
