"""The optimizer's update rule for each parameter, the same in every framework.

Muon (Jordan and others 2024) keeps one momentum and approximately orthogonalizes each matrix's update by a
Newton-Schulz iteration; embeddings, the output and vectors use AdamW. Muon's update is scaled by 0.2 sqrt(max(rows,
columns)), to the RMS of AdamW's update, so one learning rate and one decay fit both (Liu and others 2025, "Muon is
scalable for LLM training", section 2.2).
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
    from planc.ir.sharding import Sharded

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""The coefficients of the quintic, chosen for fast initial convergence (Jordan and others 2024)."""
NEWTON_SCHULZ_STEPS = 5
NORM_EPS = 1e-7
MATCHED_RMS = 0.2


def is_orthogonalised(model: Model, name: str) -> bool:
    """True if the optimizer `muon` updates the parameter `name` with Muon and not with AdamW: the matrices of the
    blocks."""
    param = model.param[name]
    inside = not {"first", "last"} & set(param.sections)
    return inside and param.decay and len(param.shape_dims) >= 2


def moments_of(plan: Plan, name: str) -> int:
    """Return the number of optimizer state tensors of the parameter `name`: 2 for AdamW, 1 for Muon, 0 if frozen."""
    if plan.model.param[name].frozen:
        return 0
    return 1 if plan.optimizer.name == "muon" and is_orthogonalised(plan.model, name) else 2


def updates_on_host(sharded: Sharded) -> bool:
    """True if the host runs the update of `sharded`'s optimizer state, which the plan keeps in the host's memory."""
    stack = sharded.stack
    return stack.policy.updates_on_host and not stack.xla and "optimizer" in sharded.plan.offloaded


def moment_elements(plan: Plan) -> int:
    """Return the number of elements of the optimizer's moments for the whole model of `plan`, without sharding or
    replicas."""
    model = plan.model
    return sum(moments_of(plan, p.name) * model.elements(p) * model.copies(p) for p in model.params)


def newton_schulz_flops(shape: Sequence[int]) -> float:
    """Return the FLOPs of all Newton-Schulz steps on every matrix of a [..., rows, columns] tensor.

    With r the shorter side of a matrix and c the longer, a step has two r x r x c matmuls and one r x r x r matmul.

    >>> newton_schulz_flops((2, 3)) == 5 * (2 * 2 * 2 * 2 * 3 + 2 * 2 * 2 * 2)
    True
    """
    *leading, one, other = shape
    rows, columns = min(one, other), max(one, other)
    return prod(leading) * NEWTON_SCHULZ_STEPS * (4.0 * rows * rows * columns + 2.0 * rows**3)


def scale_of(rows: int, columns: int) -> float:
    """Return the factor for Muon's update of a `rows` by `columns` matrix: 0.2 sqrt(max(`rows`, `columns`))."""
    return MATCHED_RMS * sqrt(max(rows, columns))


def decay_of(model: Model, settings: Settings, name: str) -> float:
    """Return the weight decay of the parameter `name`, as a fraction of the weight per unit of learning rate.

    The last of `settings.decay_groups` whose pattern matches the name decides. Without a match, the result is the
    global weight decay, or 0 for a parameter that the model family excludes from weight decay.
    """
    fitting = [value for glob, value in settings.decay_groups if fnmatchcase(name, glob)]
    if fitting:
        return fitting[-1]
    return settings.weight_decay if model.param[name].decay else 0.0
