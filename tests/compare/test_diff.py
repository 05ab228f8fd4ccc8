"""Diffs: equal plans have none, and the bytes counted are those that plain index masks count."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from planc.compare.diff import Diff, diff
from planc.compare.resharding_bytes import digits_of, digits_on, holders, resharding_bytes
from planc.driver import examine
from planc.ir.mesh import strided
from planc.ir.plan import Plan
from planc.ir.target import Target
from planc.sharding.shard_intervals import declared_layout, shared
from tests.compare.pieces import masks
from tests.cuda.cases import plan_of
from tests.plans import BODY, HEAD_BF16, propagated

BATCH = "48 x 24 tokens microbatch 1"
FSDP, TP, SP = "use fsdp over fsdp", "use tp over tp", "use sp over tp"
LAYOUTS = {
    "dp": ("dp 4", "use ddp over dp"),
    "zero1": ("dp 4", "use zero1 over dp"),
    "uneven": ("fsdp 3", FSDP),
    "hsdp": ("replica 2 > fsdp 4", "use hsdp over replica, fsdp"),
    "fsdp_tp": ("fsdp 2 > tp 2", FSDP, TP, SP),
    "tp_fsdp": ("tp 2 > fsdp 2", FSDP, TP, SP),
    "pp": ("pp 2 > fsdp 2", "split layers over pp as 1f1b", FSDP),
    "two_axes": ("a 2 > b 2", "shard batch over a, b", "store params, grads, optimizer over a, b"),
    "one": ("dp 1", "use ddp over dp"),
}


@cache
def _masked(name: str) -> tuple[Plan, list[dict[str, Any]]]:
    """A layout, and what each of its ranks keeps."""
    plan = plan_of(name, *LAYOUTS[name], batch=BATCH)
    return plan, [masks(plan, rank) for rank in range(plan.mesh.devices)]


@pytest.mark.parametrize("after", LAYOUTS)
@pytest.mark.parametrize("before", LAYOUTS)
def test_bytes_moved_are_those_of_the_masks(before: str, after: str) -> None:
    (a, had), (b, needs) = _masked(before), _masked(after)
    found = resharding_bytes(propagated(a), propagated(b), (declared_layout, declared_layout))
    lacking = []
    for rank, needed in enumerate(needs):
        here = had[rank] if rank < len(had) else {}
        lacking.append(4 * sum(int((m & ~here[n] if n in here else m).sum()) for n, m in needed.items()))
    assert (found.moved_bytes, found.worst_device_bytes) == (sum(lacking), max(lacking))
    assert lacking[found.worst_device] == max(lacking)
    assert found.needed_bytes >= found.checkpoint_bytes == 12 * a.model.parameters
    assert before != after or found.moved_bytes == 0


def test_ranks_that_hold_the_same_are_counted_once() -> None:
    axes = {a.name: a for a in strided({"pp": 4, "fsdp": 16, "tp": 8})}
    digits = digits_of(axes.values(), 512, 512)
    assert digits == ((1, 8), (8, 128), (128, 512))
    ranks = holders(digits_on(digits, [axes["pp"], axes["tp"]], 512, 512), {})
    assert len(ranks) == 32 and max(ranks) == 3 * 128 + 7
    digits = digits_of([axes["tp"]], 256, 512)
    ranks = holders(digits_on(digits, [axes["tp"]], 256, 512), {})
    assert len(ranks) == 16, "devices that are new are a kind of their own"
    crossed = strided({"a": 3, "b": 2}) + strided({"c": 2, "d": 3})
    assert holders(digits_of(crossed, 6, 6), {}) == list(range(6))


def test_ranks_without_a_shard_are_not_looked_at() -> None:
    """Axes that nest, and axes that do not."""
    axes = {a.name: a for a in strided({"fsdp": 4096, "tp": 8})}
    digits = digits_of(axes.values(), 0, 4096 * 8)
    assert len(holders(digits, {axes["fsdp"]: 3, axes["tp"]: 8})) == 24
    a, b = strided({"a": 3, "b": 2})
    crossed = digits_of([a, b, *strided({"c": 2, "d": 3})], 6, 6)
    assert holders(crossed, {b: 1}) == [0, 2, 4] and holders(crossed, {a: 1}) == [0, 1]


def test_the_worst_device_lacks_of_all_tensors_together(tmp_path: Path) -> None:
    """Here weights are replicas over one axis and moments lie over both."""
    name, other = (plan_of(n, "dp 4 > tp 2", "use zero1 over dp", TP, batch=BATCH) for n in ("a", "b"))
    moved = plan_of("c", "tp 2 > dp 4", "use zero1 over dp", TP, batch=BATCH)
    same = resharding_bytes(propagated(name), propagated(other), (declared_layout, declared_layout))
    assert (same.moved_bytes, same.worst_device_bytes, same.worst_device) == (0, 0, 0)
    found = resharding_bytes(propagated(name), propagated(moved), (declared_layout, declared_layout))
    lacking = []
    for rank in range(8):
        had, needs = masks(name, rank), masks(moved, rank)
        lacking.append(4 * sum(int((m & ~had[n]).sum()) for n, m in needs.items()))
    assert (found.moved_bytes, found.worst_device_bytes) == (sum(lacking), max(lacking))
    assert found.worst_device == lacking.index(max(lacking))


def test_runs_meet_where_both_have_them() -> None:
    assert shared(((0, 4), (8, 12)), ((2, 9),)) == 3
    assert shared((), ((0, 4),)) == 0


def between(tmp_path: Path, one: str, other: str, target: Target | None = None) -> Diff:
    costed = []
    for name, text in (("a", one), ("b", other)):
        path = tmp_path / f"{name}.plan"
        path.write_text(text)
        checked = examine(path, target=target)
        assert checked.costed is not None, checked.report.diagnostics
        costed.append(checked.costed)
    return diff(costed[0], costed[1], names=("a", "b"))


PLAN = HEAD_BF16 + BODY


@pytest.mark.parametrize("target", [None, "cuda", "xla"])
def test_a_plan_differs_in_nothing_from_itself(tmp_path: Path, target: Target | None) -> None:
    found = between(tmp_path, PLAN, PLAN, target)
    assert (found.changes, found.apart) == ((), ())
    assert found.checkpoint is not None and found.checkpoint.moved_bytes == 0


def test_numbers_are_those_of_the_reports(tmp_path: Path) -> None:
    found = between(tmp_path, PLAN, PLAN.replace("recompute blocks\n", ""))
    assert [c.name for c in found.changes if c.part == "plan"] == ["recompute"]
    costs = [examine(tmp_path / f"{name}.plan").report for name in "ab"]
    for change in found.changes:
        if change.part in ("memory", "step") and change.name != "capacity":
            for value, report in zip((change.a, change.b), costs, strict=True):
                part = report.step if change.part == "step" else report.memory and report.memory.per_device_gib
                assert value == getattr(part, change.name)
    assert {c.name for c in found.changes if c.part == "step"} >= {"time_s", "recompute_s"}
    assert not [c for c in found.changes if c.part == "shards"] and found.comparable
    assert found.checkpoint is not None and found.checkpoint.moved_bytes == 0


def test_collectives_are_counted_by_kind(tmp_path: Path) -> None:
    """Without sequence parallelism the reductions over tp are whole all-reduces."""
    found = between(tmp_path, PLAN, PLAN.replace("use       sp   over tp\n", ""))
    calls = {c.name: (c.a, c.b) for c in found.changes if c.part == "collectives" and c.unit == "calls"}
    assert calls["all_gather tp bf16"][0] and calls["all_gather tp bf16"][1] is None
    assert calls["reduce_scatter tp bf16"][1] is None and "all_reduce tp bf16" in calls
    shards = [c for c in found.changes if c.part == "shards"]
    assert any("hidden" in c.names and c.a == "batch over fsdp 8; sequence over tp 8" for c in shards)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("llama3_8b", "llama3_70b", ["model"]),
        ("64 x 8192", "128 x 8192", ["sequences of a step"]),
        ("64 x 8192", "64 x 4096", ["tokens of a sequence"]),
        ("bf16 reduce fp32", "fp32 reduce fp32", ["compute dtype"]),
        ("bf16 reduce fp32", "bf16 reduce bf16", ["reduction dtype"]),
        ("recompute blocks", "store optimizer as bf16 over fsdp", ["dtype of stored optimizer"]),
        ("recompute blocks", "quantize ffn as float8(rowwise)", ["quantized matmuls"]),
        ("recompute blocks", "", []),
        ("microbatch 1", "microbatch 2", []),
        ("mesh      fsdp 8 > tp 8", "mesh      tp 8 > fsdp 8", []),
    ],
)
def test_what_parts_the_losses(tmp_path: Path, old: str, new: str, what: list[str]) -> None:
    assert old in PLAN
    found = between(tmp_path, PLAN, PLAN.replace(old, new))
    assert [reason.what for reason in found.apart] == what
    assert found.comparable is (not what)
    for reason in found.apart:
        assert reason.sentence_a or reason.sentence_b, "a reason names its sentence"


@pytest.mark.parametrize(("route", "comparable"), [("dropless", True), ("capacity(factor = 1.25)", False)])
def test_dropped_tokens_depend_on_the_layout(tmp_path: Path, route: str, comparable: bool) -> None:
    """An expert's room is counted in a rank's tokens: twice the microbatch is other tokens dropped."""
    text = PLAN.replace("llama3_8b", "mixtral_8x7b") + f"route     experts as {route}\n"
    found = between(tmp_path, text, text.replace("microbatch 1", "microbatch 2"))
    assert found.comparable is comparable
    assert [reason.what for reason in found.apart] == ([] if comparable else ["tokens that experts drop"])


def test_another_machine_has_nothing_of_the_checkpoint(tmp_path: Path) -> None:
    found = between(tmp_path, PLAN, PLAN.replace("h100_node", "a100_node"))
    move = found.checkpoint
    assert move is not None and not move.same_machine and move.moved_bytes == move.needed_bytes > 0
    assert found.comparable and ("chip", "h100", "a100") in {(c.name, c.a, c.b) for c in found.changes}


def test_models_that_differ_share_no_checkpoint(tmp_path: Path) -> None:
    assert between(tmp_path, PLAN, PLAN.replace("llama3_8b", "llama3_70b")).checkpoint is None
