"""The optimizer's update rule for each parameter by its name in the op graph, the same on every stack.

Muon (Jordan and others 2024) has one momentum and approximately orthogonalizes each matrix's update by a Newton-Schulz
iteration; embeddings, the output and vectors use AdamW. Its update is scaled by 0.2 sqrt(max(rows, columns)) to the RMS
of AdamW's, so one learning rate and one decay fit both (Liu and others 2025, "Muon is scalable for LLM training",
section 2.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from math import prod, sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planc.ir.model import Model
    from planc.ir.plan import Plan
    from planc.ir.session import Settings

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""The coefficients of the quintic, chosen for fast initial convergence (Jordan and others 2024)."""
NEWTON_SCHULZ_STEPS = 5
NORM_EPS = 1e-7
MATCHED_RMS = 0.2


def is_orthogonalised(model: Model, name: str) -> bool:
    """True if Muon, and not AdamW, updates the parameter called `name`: a matrix of the blocks. Of experts, each
    expert's matrix is updated by itself."""
    param = model.param[name]
    inside = not {"first", "last"} & set(param.sections)
    return inside and param.decay and len(param.shape_dims) >= 2


def moments_of(plan: Plan, name: str) -> int:
    """Return the number of optimizer state tensors of the parameter called `name`: two for AdamW, one for Muon, none if
    frozen."""
    if plan.model.param[name].frozen:
        return 0
    return 1 if plan.optimizer.name == "muon" and is_orthogonalised(plan.model, name) else 2


def moment_elements(plan: Plan) -> int:
    """Return the number of elements of the optimizer's moments for the whole model of `plan`, one copy."""
    model = plan.model
    return sum(moments_of(plan, p.name) * model.elements(p) * model.copies(p) for p in model.params)


def newton_schulz_flops(shape: Sequence[int]) -> float:
    """Return the FLOPs of a full Newton-Schulz iteration on every matrix of a [..., rows, columns] tensor.

    Each of its steps has two products of rows x rows x columns and one of rows x rows x rows, rows being the shorter
    side.

    >>> newton_schulz_flops((2, 3)) == 5 * (2 * 2 * 2 * 2 * 3 + 2 * 2 * 2 * 2)
    True
    """
    *leading, one, other = shape
    rows, columns = min(one, other), max(one, other)
    return prod(leading) * NEWTON_SCHULZ_STEPS * (4.0 * rows * rows * columns + 2.0 * rows**3)


def scale_of(rows: int, columns: int) -> float:
    """Return the scale of an orthogonalised update of a `rows` by `columns` matrix: 0.2 times the root of the
    larger."""
    return MATCHED_RMS * sqrt(max(rows, columns))


def decay_of(model: Model, settings: Settings, name: str) -> float:
    """Return the weight decay (fraction of a weight per unit of learning rate) of the parameter called `name`.

    The last group in `settings` whose pattern matches the name decides. If none matches, it is the global weight decay,
    or 0 if the model family excludes the parameter from weight decay.
    """
    fitting = [value for glob, value in settings.decay_groups if fnmatchcase(name, glob)]
    if fitting:
        return fitting[-1]
    return settings.weight_decay if model.param[name].decay else 0.0
