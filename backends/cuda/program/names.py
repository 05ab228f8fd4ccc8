"""Names that the other modules take from the rest of a program, here of a small plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

LOSS_CHUNKS = 2
MICROBATCH_SEQUENCES = 2
STAGES = ((0, 1), (1, 2))

loss_fn: Any = torch.nn.functional.mse_loss
build_schedule: Any = None
stage_indices: Any = None
sequence_rows: Any = None
sum_gradients: Any = None
sum_shared_gradients: Any = None


def mean_over_batch(total: torch.Tensor, mesh: Any) -> torch.Tensor:
    """The mean over the data ranks, of which there is one."""
    return total
