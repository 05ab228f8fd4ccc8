"""`history.json` of a checkpoint: losses, gradient norms and times of all steps until it was saved."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, ValidationError

from planc.files import parse_json
from planc.ir.frozen import Frozen, first_mistake

FP32 = 3.4028235e38
"""The largest number of 32 bits, in which losses and norms are made."""
Number = Annotated[float, Field(ge=-FP32, le=FP32, allow_inf_nan=False, strict=True)]
Size = Annotated[float, Field(ge=0, le=FP32, allow_inf_nan=False, strict=True)]
Step = Annotated[int, Field(ge=0)]


class SavedHistory(Frozen):
    """The JSON fields of `planc.trainer.run.loop.History`. A loss or gradient norm is None for a skipped step."""

    losses: tuple[Number | None, ...]
    grad_norms: tuple[Size | None, ...]
    seconds: tuple[Size, ...]
    held_out: dict[Step, Number]


def read(text: str, step: int) -> dict[str, Any]:
    """Parse the history in `text` of a run of `step` steps. Raises ValueError if it is invalid."""
    try:
        found = SavedHistory.model_validate(parse_json(text))
    except ValidationError as error:
        raise ValueError(first_mistake(error)) from None
    lengths = {len(found.losses), len(found.grad_norms), len(found.seconds)}
    if lengths != {step} or max(found.held_out, default=0) > step:
        raise ValueError(f"it is not the history of {step} steps")
    return {
        "losses": list(found.losses),
        "grad_norms": list(found.grad_norms),
        "seconds": list(found.seconds),
        "held_out": dict(found.held_out),
    }
