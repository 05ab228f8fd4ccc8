"""Measurements of this machine for experiments: what each rank runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from planc.trainer.measure import coordinator

ROOT = Path(__file__).resolve().parents[3]


def rows_of_ranks(
    worker: str, words: Sequence[str], task: dict[str, Any], processes: int, timeout_s: float
) -> list[dict[str, Any]]:
    """`coordinator.rows_of_ranks` for a `worker` of this folder, which ranks find in the checkout.

    `words`, `task`, `processes` and `timeout_s` are as there. Raises MeasuringError.
    """
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH", "")])])
    return coordinator.rows_of_ranks(
        f"{__name__}.{worker}", words, task, processes, timeout_s, env={"PYTHONPATH": path}
    )
