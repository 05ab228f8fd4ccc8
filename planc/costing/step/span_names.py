"""Names of a step's spans: actions, their parts and transfers, each with the plan's sentence that causes it.

Predicted traces and profiler traces use the same names. Actions are named as in
`torch.distributed.pipelining.schedules`, collectives as in `planc cost`.
"""

from __future__ import annotations

from collections.abc import Iterable

from planc.ir.base import Cause
from planc.ir.collective import Collective, Phase
from planc.ir.plan import Plan
from planc.pipeline.actions import LETTERS, Kind

PHASES: dict[str, tuple[Phase, ...]] = {
    "F": ("forward",),
    "B": ("backward", "recompute"),
    "I": ("backward", "recompute"),
}
"""Phases of the collectives of an action, by its letter. Other letters (`W`, or none) do not distinguish phases."""


def action_name(kind: Kind, stage: int, microbatch: int) -> str:
    """Return the name of an action's compute on pipeline stage `stage` and `microbatch`, both counted from 0.

    >>> action_name("backward_input", 2, 1)
    '2I1 backward of input'
    """
    return f"{stage}{LETTERS[kind]}{microbatch} {kind.replace('_', ' of ')}"


def part_name(action: str, part: str, causes: Iterable[Cause | None] = ()) -> str:
    """Return the name of a part of an action (its recompute, say) with the sentences that cause it.

    `action` is empty after the last microbatch.

    >>> part_name("0B3", "recompute", [plan.recompute.cause])
    '0B3 recompute: llama3_70b_h100.plan:15  recompute attention.core'
    """
    return _with_sentences(f"{action} {part}".strip(), causes)


def transfer_name(rows: Iterable[Collective]) -> str:
    """Return the name of the collectives `rows` (with one operation and axis), and the sentences that cause them.

    >>> transfer_name([costed.collectives[0].row]).partition(":")[0]
    'reduce_scatter of activations over tp, forward'
    """
    found = list(rows)
    return _with_sentences(transfer_words(found), (row.cause for row in found))


def transfer_words(rows: Iterable[Collective]) -> str:
    """Return the name of the collectives `rows` (with one operation and axis), without sentences."""
    found = list(rows)
    carried = " and ".join(sorted({f"{row.carries}s" for row in found}))
    phases = {row.phase for row in found}
    return f"{found[0].op} of {carried} over {found[0].axis}" + (f", {phases.pop()}" if len(phases) == 1 else "")


def optimizer_cause(plan: Plan) -> Cause | None:
    """Return the sentence of `plan` that determines the update's seconds: Muon's, or where moments are stored."""
    return plan.optimizer.cause if plan.optimizer.name == "muon" else plan.cause_of_store("optimizer")


class TransferNames:
    """Names of a program's collectives by operation and mesh dimension: a running program can report these two."""

    def __init__(self, rows: Iterable[tuple[str, Collective]]) -> None:
        """Index the predicted collectives. `rows` pairs each with the name of its axes in the emitted mesh."""
        self._rows: dict[tuple[str, str], list[Collective]] = {}
        self._names: dict[tuple[str, str, str], str] = {}
        for dimension, row in rows:
            self._rows.setdefault((row.op, dimension), []).append(row)

    def name(self, op: str, dimension: str, letter: str = "") -> str:
        """Return the name of a collective `op` over `dimension`, in an action of `letter` F, B, I or W ("": any)."""
        key = op, dimension, letter
        if key not in self._names:
            rows = self._rows.get((op, dimension), [])
            mine = [row for row in rows if row.phase in PHASES.get(letter, ())] or rows
            self._names[key] = transfer_name(mine) if mine else f"{op} over {dimension}: not predicted"
        return self._names[key]


def _with_sentences(name: str, causes: Iterable[Cause | None]) -> str:
    """Append a colon and the distinct sentences of `causes` to `name`."""
    said = dict.fromkeys(cause.comment() for cause in causes if cause is not None)
    return f"{name}: {'; '.join(said)}" if said else name
