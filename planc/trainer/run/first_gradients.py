"""Computes the gradient norm of every parameter at the first step, to diagnose runs that diverge."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planc.ir.session import Session
    from planc.trainer.preset.settings import TrainTable

MOMENT = "exp_avg."
CLIP_EPS = 1e-6
"""Both stacks clip by max_norm / (norm + this)."""


def first_gradient_norms(session: Session, train: TrainTable, grad_norm: float) -> dict[str, float] | None:
    """Return the L2 norm of each parameter's gradient at the first step, before clipping, by the parameter's name.

    Must be called after the first step, when AdamW's first moment is (1 - beta) times the clipped gradient. `grad_norm`
    is the global norm that the step returned; `train` has the betas and the clipping. None if the optimizer is not
    AdamW, or if several processes hold the state and the session does not gather norms.
    """
    import numpy as np

    if train.optimizer != "adamw" and session.world == 1:
        return None
    if session.world > 1:
        return _gathered(session, _scale(train, grad_norm))
    share = (1 - train.betas[0]) * _scale(train, grad_norm)
    squares: dict[str, float] = {}
    for piece in session.pieces():
        if piece.name.startswith(MOMENT):
            values = np.empty(piece.size, np.float32)
            piece.copy_to(values)
            name = piece.name.removeprefix(MOMENT)
            squares[name] = squares.get(name, 0.0) + float(np.square(values, dtype=np.float64).sum())
    return {name: math.sqrt(total) / share for name, total in squares.items()}


def _scale(train: TrainTable, grad_norm: float) -> float:
    """Return the factor by which clipping scaled the gradients."""
    return min(1.0, train.clip_norm / (grad_norm + CLIP_EPS)) if train.clip_norm else 1.0


def _gathered(session: Session, scale: float) -> dict[str, float] | None:
    """Return the norms that a session of several processes gathers, divided by `scale` because they are of clipped
    gradients; None if the session gathers none."""
    tell = getattr(session, "gradient_norms", None)
    return {name: norm / scale for name, norm in tell().items()} if tell else None
