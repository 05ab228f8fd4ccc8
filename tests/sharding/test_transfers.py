"""Transfers between two layouts: every rank of the generator has its part in the end, and the sums are those hops."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from planc.checks import assume_checked
from planc.compare.resharding_bytes import resharding_bytes
from planc.ir.plan import Plan
from planc.ir.sharding import Sharded
from planc.language.build import build_alone
from planc.sharding.propagate import propagate
from planc.sharding.shard_intervals import declared_layout
from planc.sharding.transfer_core import cells, hops, rotation_of
from planc.sharding.transfers import Load, TensorMove, sides_of, tensor_transfers, transfer, transfer_of
from tests.compare.pieces import masks
from tests.sharding.test_transfer_core import drawn, side_of

DRAWN = 200
DENSE, SPARSE = "llama_micro", "qwen3_moe_micro"
FSDP, TP, DDP, PP = "use fsdp over fsdp", "use tp over tp", "use ddp over dp", "use pp over pp as 1f1b"
VIEW = "view efsdp {} > ep {} of fsdp for experts"
EP = "use ep over ep"
STORE = "store params, grads, optimizer over efsdp for experts"
TRAINERS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "fsdp": (DENSE, "fsdp 4", (FSDP,)),
    "uneven": (DENSE, "fsdp 3", (FSDP,)),
    "fsdp_tp": (DENSE, "fsdp 2 > tp 2", (FSDP, TP)),
    "tp_outside": (DENSE, "tp 2 > fsdp 2", (FSDP, TP)),
    "pp": (DENSE, "pp 2 > fsdp 2", (PP, FSDP)),
    "ddp": (DENSE, "dp 4", (DDP,)),
    "sparse": (SPARSE, "fsdp 4", (FSDP,)),
    "sparse_ep": (
        SPARSE,
        "fsdp 4",
        (VIEW.format(2, 2), FSDP, EP, STORE),
    ),
}
GENERATORS: dict[str, tuple[str, tuple[str, ...]]] = {
    "one": ("dp 1", (DDP,)),
    "dp4": ("dp 4", (DDP,)),
    "tp2": ("tp 2", (TP,)),
    "tp4": ("tp 4", (TP, "replicate kv_heads over tp")),
    "dp2_tp2": ("dp 2 > tp 2", (DDP, TP)),
    "tp2_dp2": ("tp 2 > dp 2", (DDP, TP)),
    "pp2": ("pp 2 > tp 2", (PP, TP)),
}
SPARSE_GENERATORS: dict[str, tuple[str, tuple[str, ...]]] = {
    "tp2": ("tp 2", (TP,)),
    "dp4": ("dp 4", (DDP,)),
    "ep4": ("dp 4", ("view ep 4 of dp for experts", DDP, EP)),
    "ep4_tp2": ("dp 2 > tp 2", ("view ep 4 of dp, tp for experts", DDP, TP, EP)),
}


def _devices(mesh: str) -> int:
    return int(np.prod([int(word) for word in mesh.replace(">", " ").split()[1::2]]))


def _plan(model: str, mesh: str, sentences: tuple[str, ...]) -> Plan:
    text = [
        "plan example",
        f"model {model}",
        f"batch {4 * _devices(mesh)} x 24 tokens microbatch 1",
        f"cluster {_devices(mesh)} x cpu_local",
        f"mesh {mesh}",
        *sentences,
        "compute fp32",
    ]
    built = build_alone("\n".join(text), "example", {})
    assert built.plan is not None, built.diagnostics
    return built.plan


def _layouts(plan: Plan) -> Sharded:
    return propagate(assume_checked(plan).for_planc)


def _pairs() -> list[Any]:
    found = []
    for (a, (model, mesh, _)), colocated in product(TRAINERS.items(), (False, True)):
        for b, (other, _) in (GENERATORS if model == DENSE else SPARSE_GENERATORS).items():
            if not colocated or _devices(mesh) == _devices(other):
                found.append(pytest.param(a, b, colocated, id=f"{a}-{b}-{'colocated' if colocated else 'apart'}"))
    return found


def _held(plan: Plan) -> list[dict[str, Any]]:
    """The weights that each rank keeps, as masks."""
    found = []
    for rank in range(plan.mesh.devices):
        kept = masks(plan, rank)
        found.append({name.removeprefix("params."): mask for name, mask in kept.items() if name.startswith("params.")})
    return found


@pytest.mark.parametrize(("before", "after", "colocated"), _pairs())
def test_hops_bring_each_rank_its_part(before: str, after: str, colocated: bool) -> None:
    """Ranks hold what index masks say; a sender has what it sends, and all that is missing_ranks arrives once."""
    model, mesh, sentences = TRAINERS[before]
    generators = GENERATORS if model == DENSE else SPARSE_GENERATORS
    trainer, generator = _plan(model, mesh, sentences), _plan(model, *generators[after])
    source, target = _layouts(trainer), _layouts(generator)
    per_node = 2
    sides = tuple(side._replace(per_node=per_node) for side in sides_of(source, target, colocated=colocated))
    held, wanted = _held(trainer), _held(generator)
    first = sides[1].first
    moved: dict[int, Load] = {}
    deepest = 0
    state: dict[int, dict[str, Any]] = {rank: dict(own) for rank, own in enumerate(held)}
    shapes = {p.name: generator.model.shape(p) for p in generator.model.params}
    for move in tensor_transfers(source, target, declared_layout):
        found = list(cells(move.source, move.target, (sides[0], sides[1])))
        for layer in move.layers:
            name = move.param.name.replace("*", str(layer))
            for index, (box, holders, wanters) in enumerate(found):
                rotation = rotation_of(move.number, layer, index)
                for hop in hops(box, holders, wanters, rotation, (sides[0], sides[1]), colocated):
                    at = tuple(slice(a, b) for a, b in hop.box)
                    assert state[hop.sender][name][at].all(), "a rank sends what it does not have"
                    deepest = max(deepest, hop.depth)
                    own = state.setdefault(hop.receiver, {})
                    mask = own.get(name, np.zeros(shapes[move.param.name], bool)).copy()
                    assert not mask[at].any(), "an element arrives twice"
                    mask[at] = True
                    own[name] = mask
                    size = int(np.prod([b - a for a, b in hop.box]))
                    into, out = moved.setdefault(hop.receiver, Load()), moved.setdefault(hop.sender, Load())
                    if sides[hop.sender >= first].node(hop.sender) == sides[1].node(hop.receiver):
                        into.near_in, out.near_out = into.near_in + size, out.near_out + size
                    else:
                        into.far_in, out.far_out = into.far_in + size, out.far_out + size
    for rank, needs in enumerate(wanted):
        for name, mask in needs.items():
            assert state[first + rank][name][mask].all(), (rank, name)
    sums = transfer(
        source, target, declared_layout, colocated=colocated, wire_bytes=lambda _move: 1.0, per_node=per_node
    )
    assert {rank: load for rank, load in sums.loads.items() if load != Load()} == moved
    assert sums.sent_bytes == sum(load.near_in + load.far_in for load in moved.values())
    missing_ranks = 0
    for rank, needs in enumerate(wanted):
        have = held[rank] if colocated else {}
        missing_ranks += sum(int((mask & ~have[n] if n in have else mask).sum()) for n, mask in needs.items())
    assert sums.sent_bytes == missing_ranks
    assert sums.deepest == deepest
    resumed = resharding_bytes(
        source,
        target,
        (lambda p, _: declared_layout(p, "params"), lambda _p, _noun: ((), None)),
        same_machine=colocated,
    )
    most = max((load.near_in + load.far_in for load in sums.loads.values()), default=0.0)
    resumed_bytes = resumed.moved_bytes, resumed.worst_device_bytes
    assert resumed_bytes == (12 * sums.sent_bytes, 12 * most), "weights and two moments in fp32"


def test_sums_are_those_of_the_hops_of_drawn_pairs() -> None:
    """On up to 24 ranks, several layers and turns; meshes whose nodes lack different numbers of ranks too."""
    param = next(iter(_plan(*TRAINERS["ddp"][:2], (DDP,)).model.params))
    for seed in range(DRAWN):
        pair = drawn(seed, most=24)
        layers = tuple(range(seed % 5, seed % 5 + seed % 7 + 1))
        loads: dict[int, Load] = {}
        deepest = 0
        for index, (box, holders, wanters) in enumerate(cells(pair.source, pair.target, pair.sides)):
            size = float(np.prod([b - a for a, b in box]))
            for layer in layers:
                rotation = rotation_of(seed, layer, index)
                for hop in hops(box, holders, wanters, rotation, pair.sides, pair.colocated):
                    deepest = max(deepest, hop.depth)
                    into, out = (loads.setdefault(rank, Load()) for rank in (hop.receiver, hop.sender))
                    nodes = [side_of(rank, pair).node(rank) for rank in (hop.sender, hop.receiver)]
                    if nodes[0] == nodes[1]:
                        into.near_in, out.near_out = into.near_in + size, out.near_out + size
                    else:
                        into.far_in, out.far_out = into.far_in + size, out.far_out + size
        found = transfer_of([TensorMove(param, seed, layers, pair.source, pair.target)], pair.sides, lambda _: 1.0)
        assert {rank: load for rank, load in found.loads.items() if load != Load()} == loads, seed
        assert found.deepest == deepest, seed
