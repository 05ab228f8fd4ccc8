"""The result of a campaign, as a table, a sentence and a page."""

from __future__ import annotations

import platform
from datetime import UTC, datetime

from tests.faults.campaign import Trial

INSIDE_SAVE, IN_COLLECTIVE, TOO_LATE = "inside a save", "in a collective", "too late"

PAGE = """# Runs that were killed, stopped and damaged

Written by `make faults` on {day} ({processor}, {minutes} minutes, seed {seed}; `make faults FAULTS="--seed {seed}"`
draws the same moments). {about}

{table}

{verdict}

After every trial it is looked at: the command has ended in time with the status that belongs to the fault, and
left no process; every checkpoint that was said to be on the disk is there and whole; the losses in the newest
one are, to the bit, those of a run that nothing happened to. A damaged checkpoint must be refused with a code,
and the whole one before it found.

| stack | what was done | when | seconds | outcome |
|---|---|---|---|---|
{rows}
"""
ABOUT = """`kill any` falls at a moment uniform over the wall-clock time of a whole run:
imports, meeting of the ranks, compilation, steps, saves, the end. `kill save` holds the ranks while a checkpoint is
half written, and kills then. `kill collective` holds one rank until the other is seen to stand still in a
collective. The run goes on from what is there, again and again, and at last to its end (`finish`)."""


def table(done: list[Trial]) -> str:
    """One row a fault and stack."""
    rows = [
        "| stack | fault | trials | inside a save | in a collective | wrong |",
        "|---|---|---|---|---|---|",
    ]
    for stack, fault in dict.fromkeys((t.stack, t.fault) for t in sorted(done, key=lambda t: (t.stack, t.fault))):
        of_kind = [t for t in done if (t.stack, t.fault) == (stack, fault)]
        rows.append(
            f"| {stack} | {fault} | {len(of_kind)} | {_where(of_kind)} | {sum(bool(t.wrong) for t in of_kind)} |"
        )
    rows.append(f"| **both** | | {len(done)} | {_where(done)} | {sum(bool(t.wrong) for t in done)} |")
    return "\n".join(rows)


def verdict(done: list[Trial]) -> str:
    """Kills and corruptions that came in time, and how many of what must not happen did."""
    struck = [t for t in done if t.fault != "finish" and TOO_LATE not in t.moment]
    said = [what for t in done for what in t.wrong]
    lost = sum("was saved, and the newest is" in what for what in said)
    losses = sum("losses" in what for what in said)
    hung, left = sum(what == "it hung" for what in said), sum("is left" in what for what in said)
    other = len(said) - lost - losses - hung - left
    inside = f"{_count(struck, INSIDE_SAVE)} inside a save, {_count(struck, IN_COLLECTIVE)} inside a collective"
    found = f"{lost} lost steps, {losses} wrong resumes, {hung} hangs, {left} orphans, {other} other findings"
    return f"{len(struck)} faults struck ({inside}): {found}."


def text(done: list[Trial], seed: int, seconds: float) -> str:
    """The page."""
    rows = "\n".join(
        f"| {t.stack} | {t.fault} | {t.moment} | {t.seconds:.1f} | {'; '.join(t.wrong) or 'ok'} |" for t in done
    )
    return PAGE.format(
        day=datetime.now(UTC).date().isoformat(),
        processor=f"{platform.machine()}, CPU",
        minutes=round(seconds / 60),
        seed=seed,
        about=ABOUT,
        table=table(done),
        verdict=verdict(done),
        rows=rows,
    )


def _where(done: list[Trial]) -> str:
    return f"{_count(done, INSIDE_SAVE)} | {_count(done, IN_COLLECTIVE)}"


def _count(done: list[Trial], where: str) -> int:
    return sum(where in t.moment and TOO_LATE not in t.moment for t in done)
