"""Seconds of the optimizer's update on one device.

Sources: Loshchilov and Hutter 2019 (arXiv:1711.05101), algorithm 2, for AdamW; Jordan et al. 2024 for Muon.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TypeVar

from planc.costing.machine.rates import dtype_s_per_flop, memory_bytes_per_s
from planc.ir.collective import DTYPE_BYTES
from planc.ir.model import Section
from planc.ir.plan import Plan
from planc.ir.sharding import ParamSharding, Sharded
from planc.ir.updates import moments_of, newton_schulz_flops, updates_on_host
from planc.sharding.local import stored_elements
from planc.sharding.stage_assignment import copies_in

OPTIMIZER_PASSES = 7
"""AdamW reads gradient, master and two moments and writes three of them (Loshchilov and Hutter 2019, algorithm 2)."""
MUON_PASSES = 5
"""Muon reads gradient, master and momentum and writes two of them (Jordan and others 2024)."""

Sections = tuple[Section, ...]
"""The sections that use a parameter. Most parameters have one; an embedding tied to the head has two."""
T = TypeVar("T")


def update_seconds(sharded: Sharded) -> dict[Sections, float]:
    """Return the seconds to update one copy of the parameters on a device, by the sections of `sharded` that use them.

    AdamW is memory bound: it reads or writes each stored byte of the master `OPTIMIZER_PASSES` times. Muon transfers
    less, and runs its Newton-Schulz iteration in fp32 on whole matrices on every device, as planc's torch runtime does.
    Sources: Loshchilov and Hutter 2019, algorithm 2; Jordan et al. 2024.

    >>> f"{update_seconds(sharded)[('block',)] * 1e6:.0f} us"  # 7 x 4 bytes of 856 million parameters / 128 devices
    '56 us'
    """
    return {
        sections: sum(_update_bytes(sharded, p) for p in params) / memory_bytes_per_s(sharded.plan.cluster.chip)
        + sum(_orthogonal_s(sharded.plan, p) for p in params)
        for sections, params in by_sections(sharded).items()
    }


def _update_bytes(sharded: Sharded, p: ParamSharding) -> float:
    """Return the bytes of parameter `p`'s state that one update reads and writes on a device."""
    plan = sharded.plan
    if p.param.frozen or updates_on_host(sharded):
        return 0.0
    adamw = sharded.stack.policy.update_passes or OPTIMIZER_PASSES
    passes = adamw if moments_of(plan, p.param.name) == 2 else MUON_PASSES
    size = DTYPE_BYTES[plan.store_dtype("optimizer", p.param.region)]
    return float(passes * stored_elements(plan, p, p.stored["optimizer"]) * size)


def _orthogonal_s(plan: Plan, p: ParamSharding) -> float:
    """Return the seconds of Muon's Newton-Schulz iteration for parameter `p`; 0 if AdamW updates it."""
    if moments_of(plan, p.param.name) != 1:
        return 0.0
    return newton_schulz_flops(plan.model.shape(p.param)) * dtype_s_per_flop(plan.cluster.chip, "fp32")


def optimizer_s(updates: Mapping[Sections, float], load: Mapping[Section, int], blocks: Container[Section]) -> float:
    """Return the seconds of the optimizer update on a rank.

    Args:
        updates: seconds of one copy, as `update_seconds` returns them.
        load: copies of each section on the rank.
        blocks: the sections that are kinds of block; a rank has a parameter of other sections at most once.

    >>> optimizer_s({("block",): 0.25, ("first", "last"): 0.5}, {"first": 1, "block": 4, "last": 1}, {"block"})
    1.5
    """
    return sum([n * s for n, s in held_by(load, updates, blocks)])


def held_by(
    load: Mapping[Section, int], by_use: Mapping[Sections, T], blocks: Container[Section]
) -> list[tuple[int, T]]:
    """Return the values of `by_use` (by the sections that use a parameter) on a rank, each with its number of copies.

    `load` has the copies of each section on the rank. Sections in `blocks` are kinds of block; a rank has a parameter
    of other sections at most once.

    >>> held_by({"first": 1, "block": 4}, {("block",): "a layer", ("last",): "the head"}, {"block"})
    [(4, 'a layer')]
    """
    found = [(copies_in(load, sections, blocks), one) for sections, one in by_use.items()]
    return [(n, one) for n, one in found if n]


def by_sections(sharded: Sharded) -> dict[Sections, list[ParamSharding]]:
    """Return the parameters of `sharded`'s plan, grouped by the sections that use them."""
    found: dict[Sections, list[ParamSharding]] = {}
    for p in sharded.params:
        found.setdefault(tuple(p.param.sections), []).append(p)
    return found
