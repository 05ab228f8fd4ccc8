"""Features of layouts that were trained together: each pair of them, counted over the lines of a campaign.

A pair that was not trained contradicts itself by what its features mean (`APART`), is refused by a rule that a plan in
`refused/` meets (`RULES`), or is empty. Plans of pairs that hardly any seed has lie in `corpus/pairs/`.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

from planc.ir.model import EXPERTS
from planc.ir.plan import Plan
from planc.ir.target import Target
from planc.language.build import build_file
from tests.random_plans.draw import draw
from tests.random_plans.promises import write

Line = dict[str, Any]
Pair = tuple[str, str]


def _tensor(plan: Plan) -> tuple[str, ...]:
    dims = ("heads", "ffn", "vocab", "embed", "kv_heads")
    taken = {*_context(plan), *plan.data_axes}
    regions = ("", *plan.model.regions)
    return plan.mesh.in_order({a for d in dims for r in regions for a in plan.axes_of(d, r)} - taken)


def _context(plan: Plan) -> tuple[str, ...]:
    return plan.mesh.in_order(plan.axes_of("sequence"))


def _pipeline(plan: Plan) -> tuple[str, ...]:
    return plan.mesh.in_order((plan.split.axis,)) if plan.split else ()


def _outside(plan: Plan, outer: Iterable[str], inner: Iterable[str]) -> bool:
    """True if some of the axes `outer` lie outside some of the axes `inner`."""
    return any(plan.mesh.axis(o).stride > plan.mesh.axis(i).stride for o in outer for i in inner)


def _stored(plan: Plan, *, batch: bool, context: bool) -> bool:
    over = set(plan.store("optimizer"))
    return (bool(over & {*plan.data_axes}), bool(over & {*_context(plan)})) == (batch, context)


def _parts(plan: Plan) -> bool:
    """True if some parameter or dim does not fall into equal parts."""
    sizes, mesh = plan.model.sizes, plan.mesh
    state = mesh.size(*plan.store("optimizer"))
    divided = any(sizes[d] % mesh.size(*plan.axes_of(d)) for d in ("heads", "ffn", "vocab", "expert_ffn") if d in sizes)
    return divided or any(sizes[p.dims[0]] % state for p in plan.model.params)


def _replays(plan: Plan) -> set[str]:
    return {"blocks", "whole_blocks"} & set(plan.recompute.ops) if plan.recompute.ops else set()


def _stages(plan: Plan) -> str:
    if not _pipeline(plan) or plan.split is None:
        return ""
    if plan.split.schedule in ("zbv", "dualpipev", "dualpipe"):
        return "V"
    return "one" if len(plan.split.stages) == plan.pipeline else "loop"


Has = Callable[[Plan], object]
FEATURES: dict[str, Has] = {
    "two batch axes": lambda p: len(p.data_axes) > 1,
    "tensor axis": _tensor,
    "sequence over tensor axis": lambda p: {*p.axes_of("sequence", "residual")} - {*_context(p)},
    "ring": lambda p: _context(p) and p.attention and p.attention.method == "ring",
    "keys gathered": lambda p: _context(p) and not _heads(p) and not (p.attention and p.attention.method == "ring"),
    "heads for sequence": lambda p: _heads(p),
    "sequences in order": lambda p: _context(p) and p.attention and p.attention.balance == "none",
    "one stage a rank": lambda p: _stages(p) == "one",
    "stages in a loop": lambda p: _stages(p) == "loop",
    "stages in a V": lambda p: _stages(p) == "V",
    "pipeline inside": lambda p: _outside(p, p.mesh.in_order(p.mesh.sizes), _pipeline(p)),
    "context outside batch": lambda p: _outside(p, _context(p), p.data_axes),
    "batch outside context": lambda p: _outside(p, p.data_axes, _context(p)),
    "tensor outside batch": lambda p: _outside(p, _tensor(p), p.data_axes),
    "batch outside tensor": lambda p: _outside(p, p.data_axes, _tensor(p)),
    "tensor outside context": lambda p: _outside(p, _tensor(p), _context(p)),
    "context outside tensor": lambda p: _outside(p, _context(p), _tensor(p)),
    "state over batch": lambda p: _stored(p, batch=True, context=False),
    "state over context": lambda p: _stored(p, batch=False, context=True),
    "state over batch and context": lambda p: _stored(p, batch=True, context=True),
    "state over part of the batch axes": lambda p: {*p.data_axes} - {*p.store("optimizer")} and p.store("optimizer"),
    "state whole": lambda p: not p.store("optimizer") and p.data_axes,
    "axes of state said inside out": lambda p: any(
        [*s.axes] != sorted(s.axes, key=lambda a: -p.mesh.axis(a).stride) for s in p.stores if not s.region
    ),
    "optimizer state alone divided": lambda p: p.store("optimizer") and not p.store("params"),
    "params divided": lambda p: p.store("params"),
    "axis of one rank": lambda p: any(a.size == 1 for a in p.mesh.every.values()),
    "uneven parts": _parts,
    "experts divided": lambda p: p.model.top_k and p.axes_of("experts", EXPERTS),
    "experts' width divided": lambda p: p.model.top_k and p.axes_of("expert_ffn", EXPERTS),
    "experts stored apart": lambda p: any(s.region for s in p.stores),
    "view": lambda p: p.mesh.views,
    "view of several axes": lambda p: any(len(p.mesh.in_order(v.of)) > 1 for v in p.mesh.views),
    "places at experts": lambda p: p.model.top_k and p.route.method == "capacity",
    "microbatches": lambda p: p.microbatches > 1,
    "blocks replayed": _replays,
    "ops replayed": lambda p: p.recompute.ops and not _replays(p),
    "a head tied to the embedding": lambda p: p.model.tied,
}
"""Features of a plan by name. Axes of one rank divide nothing, and count for the one feature that is theirs."""


def _heads(plan: Plan) -> set[str]:
    return {*plan.axes_of("heads", "attention")} & {*_context(plan)}


def features(plan: Plan) -> list[str]:
    """The features of a plan, by name."""
    return [name for name, has in FEATURES.items() if has(plan)]


@cache
def drawn(seeds: range) -> tuple[Counter[str], Counter[Pair], int]:
    """Counts of the small plans of these seeds: of each feature, of each pair, and of all."""
    single, both, plans = Counter[str](), Counter[Pair](), 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            plan = build_file(write(draw(seed, small=True), Path(folder) / str(seed))).plan
            found = features(plan) if plan else []
            single.update(found)
            both.update(combinations(found, 2))
            plans += 1
    return single, both, plans


APART: tuple[tuple[str, ...], ...] = (
    ("ring", "keys gathered", "heads for sequence"),
    ("one stage a rank", "stages in a loop", "stages in a V"),
    ("state over batch", "state over context", "state over batch and context", "state whole"),
    ("optimizer state alone divided", "state whole"),
    ("optimizer state alone divided", "params divided"),
    ("state over part of the batch axes", "state whole"),
    ("blocks replayed", "ops replayed"),
)
"""Features that no plan has two of, by what they mean."""
V, WHOLE = "stages in a V", "state whole"
RULES: dict[Target, dict[str, tuple[str, ...]]] = {
    "cuda": {
        "blocks_replayed_in_a_v": (V, "blocks replayed"),
        "experts_alone_stored": (WHOLE, "experts stored apart"),
        "params_alone_stored": (WHOLE, "params divided"),
        "gradients_alone_stored": (WHOLE, "axes of state said inside out"),
        "tensor_axes_around_the_context": ("tensor outside context", "context outside tensor"),
    },
    "xla": {
        "stages_in_a_v": (V,),
        "experts_alone_stored": (WHOLE, "experts stored apart"),
        "heads_in_order": ("heads for sequence", "sequences in order"),
    },
}
"""Features that a stack refuses together, by the plan of `refused/` that it refuses for them alone."""


def code_of(stack: Target, pair: Pair) -> str:
    """The code with which a stack refuses every plan of a pair; empty if it does not."""
    return "E0901" if any({*together} <= {*pair} for together in RULES[stack].values()) else ""


@dataclass(frozen=True)
class Table:
    """Every pair of features, by what became of it."""

    trained: Counter[Pair]
    refused: dict[Pair, str]
    apart: list[Pair]
    empty: list[Pair]

    def __str__(self) -> str:
        least = Counter(self.trained.values())
        few = ", ".join(f"{least[n]} {n} times" for n in range(1, 4))
        codes = ", ".join(f"{code} {n}" for code, n in sorted(Counter(self.refused.values()).items()))
        return (
            f"{len(self.trained)} pairs trained ({few}), {len(self.refused)} refused together ({codes}), "
            f"{len(self.apart)} apart by meaning, {len(self.empty)} empty"
            + "".join(f"\n  empty: {a} + {b}" for a, b in self.empty)
        )


def table(lines: Iterable[Line], stack: Target) -> Table:
    """The table of a stack's `lines`."""
    told = [line for line in lines if "features" in line and line["outcome"] != "refused"]
    found = Table(Counter(p for line in told for p in combinations(line["features"], 2)), {}, [], [])
    for pair in combinations(FEATURES, 2):
        if found.trained[pair]:
            continue
        if code := code_of(stack, pair):
            found.refused[pair] = code
        elif any({*pair} <= {*group} for group in APART):
            found.apart.append(pair)
        else:
            found.empty.append(pair)
    return found
