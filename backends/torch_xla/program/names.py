"""Tables that the program takes from a plan, here of a plan of one device."""

from __future__ import annotations

from typing import Any

import torch

Specs = dict[str, tuple[Any, ...]]

MESH = {"data": 1}
COMPUTE = torch.float32
MICROBATCH = 1
BATCH: tuple[Any, ...] = ("data", None)
PARAMS: Specs = {}
USED: Specs = {}
GRADS: Specs = {}
OPTIMIZER: Specs = {}
OUTPUTS: Specs = {}
INPUTS: dict[str, tuple[tuple[Any, ...], ...]] = {}
NOT_DECAYED: set[str] = set()
REPLAYED_EVERY = 1
EXPERTS = "layers.*.moe"
EXPERT_ROWS: tuple[Any, ...] = ("data", None, None)
EXPERT_MID: tuple[Any, ...] = ("data", None, None, None)
HIDDEN: tuple[Any, ...] = ("data", None, None)
CAPACITY_FACTOR = 1.0
TOKEN_RANKS = (1, 1)
