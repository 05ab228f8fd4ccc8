"""Fills a user's whole module with the values of one that was sharded, under the module's own names."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from planc.backends.cuda.runtime.compare_module import named
from planc.backends.cuda.runtime.traced.copied import written_back
from planc.ir.model import LORA_A, LORA_B

if TYPE_CHECKING:
    from planc.ir.program_text import ProgramText


def fill(program: ProgramText, model: Any, state: Mapping[str, Tensor]) -> None:
    """Copies `state` into the parameters of `model`; see `planc.ir.program.Program.fill`."""
    theirs = {id(p): p for p in (*model.parameters(), *model.buffers())}
    bound = named(copy.deepcopy(model, dict(theirs)), program)  # modules of its own, the same parameters
    values = _merged(program, state)
    places = dict(bound.named_parameters())
    wrong = sorted(places.keys() ^ values.keys())
    if wrong:
        raise ValueError(f"the state is not that of all of {program.plan.model.name}: {len(wrong)} names, {wrong[:4]}")
    storages = {p.untyped_storage().data_ptr(): p for p in theirs.values()}
    with torch.no_grad():
        for name, place in places.items():
            place.copy_(values[name])
            if place.untyped_storage().data_ptr() not in storages and not written_back(place, storages):
                raise ValueError(f"{type(model).__name__} stores {name} in another form, which is not written back")


def _merged(program: ProgramText, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns `state` with each low-rank update added to its weight."""
    values, lora = dict(state), program.plan.lora
    for name in [n for n in values if n.endswith(LORA_A)]:
        module = name.removesuffix(LORA_A)
        a, b = values.pop(name), values.pop(f"{module}{LORA_B}")
        assert lora is not None
        values[f"{module}.weight"] = values[f"{module}.weight"] + lora.alpha / lora.rank * (b @ a)
    return values
