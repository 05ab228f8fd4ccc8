"""Diagnoses from receipts why the losses of runs diverge.

The gradients of the first step are compared because they come from equal parameters and data, so a difference is caused
by this step and not by an earlier update.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from planc.diag.fast_dataclass import dataclass
from planc.trainer.receipt.receipt import Receipt

TOLERANCES = {"fp32": 1e-4, "bf16": 5e-2}
"""Largest relative difference of first gradient norms, by compute dtype; `crosscheck.BUDGETS` has those of losses."""

REPORTED = ("runtime", "versions", "features", "compile", "routing_flips")
"""Fields that may differ between comparable runs, and that may explain a divergence."""


@dataclass(frozen=True)
class Group:
    """A tensor, and the norm of its gradient at the first step in each run."""

    tensor: str
    norms: tuple[float, ...]

    @property
    def relative(self) -> float:
        """The largest minus the smallest norm, as a share of the largest."""
        largest = max(self.norms)
        return (largest - min(self.norms)) / largest if largest else 0.0


@dataclass(frozen=True)
class Diagnosis:
    """The diagnosis. `first_group` is the tensor closest to the loss whose gradient norm at the first step differs
    between the runs; None if all agree, or if a receipt has no norms (then `gradients_known` is False). `groups_apart`
    is the number of such tensors. `lines` has the fields of the receipts that differ, with each run's value."""

    gradients_known: bool
    first_group: Group | None
    groups_apart: int
    lines: dict[str, tuple[Any, ...]]

    def to_json(self) -> dict[str, Any]:
        group = self.first_group
        return {
            "gradients_known": self.gradients_known,
            "first_group": {"tensor": group.tensor, "norms": list(group.norms)} if group else None,
            "groups_apart": self.groups_apart,
            "lines": {name: list(values) for name, values in self.lines.items()},
        }


def diagnose(receipts: Sequence[Receipt]) -> Diagnosis:
    """Diagnose from their `receipts` why the losses of runs diverged. The dtype of the first receipt sets the
    tolerance."""
    known = [r.measured.first_gradient_norms for r in receipts]
    told = [norms for norms in known if norms]
    whole = len(told) == len(receipts)
    apart = _differing_groups(told, TOLERANCES.get(receipts[0].dtype, TOLERANCES["fp32"])) if whole else []
    return Diagnosis(whole, apart[0] if apart else None, len(apart), _lines(receipts))


def _differing_groups(norms: Sequence[dict[str, float]], tolerance: float) -> list[Group]:
    """Return the tensors whose norms differ by more than `tolerance`, in backward order: from the loss to the
    embedding."""
    names = [name for name in norms[0] if all(name in other for other in norms)]
    groups = [Group(name, tuple(run[name] for run in norms)) for name in sorted(names, key=_depth, reverse=True)]
    return [group for group in groups if group.relative > tolerance]


def _depth(name: str) -> tuple[int, int]:
    """Return the sort key of a parameter in forward order: from embedding to loss."""
    if name.startswith("tok_embeddings"):
        return (-1, 0)
    inner = re.fullmatch(r"layers\.([0-9]{1,9})\.(.+)", name)
    if inner is None:
        return (1 << 30, 1 if name.startswith("output") else 0)
    layer, part = inner.groups()
    second_half = not part.startswith("attention")
    inside = part.endswith(("wo.weight", "w2.weight")) + (not part.split(".")[0].endswith("norm"))
    return (int(layer), 10 * second_half + inside)


def _lines(receipts: Sequence[Receipt]) -> dict[str, tuple[Any, ...]]:
    values = {name: tuple(r.to_json()[name] for r in receipts) for name in REPORTED}
    return {name: found for name, found in values.items() if any(v != found[0] for v in found)}
