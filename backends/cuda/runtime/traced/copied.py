"""Parameters that are copies of parts of a user's parameters, and remember where these lie."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


def copied(whole: Tensor, part: Tensor, index: Any = slice(None)) -> nn.Parameter:
    """Returns `part`, a copy of `whole[index]`, as a parameter of its own. `whole` is a user's parameter, a view of
    one, or made by this function."""
    parameter = nn.Parameter(part)
    seen = (whole.untyped_storage().data_ptr(), tuple(whole.shape), whole.stride(), whole.storage_offset())
    before, _ = getattr(whole, "copied_from", (seen, None))
    parameter.copied_from = before, index  # type: ignore[attr-defined]
    return parameter


def written_back(parameter: Tensor, storages: dict[int, Tensor]) -> bool:
    """Copies `parameter` to the place that it was copied from. `storages` are the user's parameters by the address of
    their storage. Returns False if the place is unknown."""
    (address, *place), index = getattr(parameter, "copied_from", ((0,), None))
    if address not in storages:
        return False
    storages[address].detach().as_strided(*place)[index] = parameter
    return True
