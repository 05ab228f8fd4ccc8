"""Laws that propagation and cost keep for any mesh and layout."""

from __future__ import annotations

import random
from collections import Counter
from math import isclose, prod
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planc.driver import check, load
from planc.ir.report import Report
from planc.ir.sharding import Layout
from planc.sharding.local import local_length
from planc.sharding.redistribute import steps_between
from tests.plans import propagated
from tests.sharding.random_plans import ONE, Written, written

MANY = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "one.plan").write_text(ONE)
    return tmp_path


def report(folder: Path, plan: Written) -> Report:
    path = folder / "example.plan"
    path.write_text(plan.text)
    found = check(path, target="none")
    assert found.step is not None, (plan.text, [d.message for d in found.diagnostics if d.severity == "error"])
    return found


@MANY
@given(plan=written())
def test_local_parts_make_up_the_whole(folder: Path, plan: Written) -> None:
    """Every dim of every op: its local lengths over the ranks of its axes are the dim, rounded up once."""
    path = folder / "example.plan"
    path.write_text(plan.text)
    loaded = load(path)
    for ops in propagated(loaded).ops.values():
        for o in ops:
            for dim, axes in o.layout.items():
                local = local_length(loaded, dim, axes)
                ranks = prod(loaded.mesh.axis(a).size for a in axes)
                whole = local_length(loaded, dim, ())
                assert whole <= local * ranks < whole + ranks


AXES = ("a", "b", "c", "d")
DIMS = ("batch", "sequence", "heads")


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    where = {a: draw(st.sampled_from(("", *DIMS))) for a in AXES}
    return {d: axes for d in DIMS if (axes := tuple(a for a in AXES if where[a] == d))}


DUAL = {"all_gather": "slice", "slice": "all_gather", "all_to_all": "all_to_all"}


@given(before=layouts(), after=layouts())
def test_the_backward_is_the_dual_of_the_forward(before: Layout, after: Layout) -> None:
    """A gathered dim is sliced (or scattered, if it is a sum), and an exchange is turned round."""
    forward, backward = steps_between(before, (), after), steps_between(after, (), before)
    turned = Counter((DUAL[s.kind], s.axes, *((s.to_dim, s.dim) if s.to_dim else (s.dim, ""))) for s in forward)
    assert turned == Counter((s.kind, s.axes, s.dim, s.to_dim) for s in backward)
    summed = steps_between(after, tuple(a for s in forward if s.kind == "all_gather" for a in s.axes), before)
    gathered = {a for s in forward if s.kind == "all_gather" for a in s.axes}
    assert {a for s in summed if s.kind == "reduce_scatter" for a in s.axes} == gathered


@MANY
@given(plan=written(), data=st.data())
def test_keeping_more_copies_never_takes_less_memory(folder: Path, plan: Written, data: Any) -> None:
    """A `store` over fewer axes, or none, keeps at least as many bytes of state on every device."""
    stores = [line for line in plan.body if line.startswith("store") and " for " not in line]
    line = data.draw(st.sampled_from(stores))
    nouns = line.split(" over ")[0].removeprefix("store ").split(", ")
    noun = data.draw(st.sampled_from(nouns))
    left = ", ".join(n for n in nouns if n != noun)
    instead = [line.replace(", ".join(nouns), left)] if left else []
    body = [other for kept in plan.body for other in (instead if kept == line else [kept])]
    one, other = report(folder, plan), report(folder, Written(plan.head, tuple(body)))
    assert one.memory and other.memory
    part = {"params": "params", "grads": "grads", "optimizer": "optimizer"}[noun]
    for before, after in zip(one.memory.stages, other.memory.stages, strict=True):
        assert getattr(after.per_device_gib, part) >= getattr(before.per_device_gib, part) * (1 - 1e-12)


@MANY
@given(plan=written(), seed=st.integers(0, 99))
def test_the_order_of_sentences_does_not_matter(folder: Path, plan: Written, seed: int) -> None:
    lines = [*plan.head, *plan.body]
    random.Random(seed).shuffle(lines)
    assert figures(report(folder, plan)) == figures(report(folder, Written(tuple(lines))))


def figures(found: Report) -> tuple[Any, ...]:
    """Everything but places."""
    assert found.memory and found.step and found.collectives is not None
    rows = Counter(
        (r.row.op, r.row.axis, r.row.stage, r.row.phase, r.row.tensor, r.row.count, r.row.payload_bytes)
        for r in found.collectives
    )
    return found.memory, rows, round(found.step.time_s, 12)


SHORTHANDS = {
    "use ddp over replica, fsdp": ["shard batch over replica, fsdp"],
    "use hsdp over replica, fsdp": [
        "shard batch over replica, fsdp",
        "store params, grads, optimizer over fsdp",
    ],
    "use zero2 over fsdp": ["shard batch over fsdp", "store grads, optimizer over fsdp"],
    "use tp over tp": ["shard heads, ffn, vocab over tp"],
    "use sp over tp": ["shard sequence over tp in residual"],
    "use cp over cp as ring": ["shard sequence over cp", "attention.core as ring"],
    "use ulysses over cp": ["shard sequence over cp", "shard heads over cp in attention"],
    "use ep over fsdp": ["shard experts over fsdp"],
    "use pp over pp as 1f1b": ["split layers over pp as 1f1b"],
}
BASE = {
    "use sp over tp": ["shard batch over replica, fsdp", "shard heads, vocab over tp"],
    "use zero2 over fsdp": [],
    "use hsdp over replica, fsdp": [],
    "use ddp over replica, fsdp": [],
}


@pytest.mark.parametrize("shorthand", SHORTHANDS)
def test_a_shorthand_costs_what_it_stands_for(folder: Path, shorthand: str) -> None:
    moe = "ep over" in shorthand
    axis = shorthand.split(" over ")[1].split(" as ")[0]
    names = [a for a in ("pp", "replica", "fsdp", "cp", "tp") if a in axis.split(", ")]
    mesh = " > ".join(f"{a} {8 // 2 ** (len(names) - 1) if a == names[-1] else 2}" for a in names)
    head = (
        "model mixtral_8x7b(layers = 4)" if moe else "model llama3_8b(layers = 8)",
        "batch 64 x 4096 tokens microbatch 1",
        "cluster 1 x h100_node",
        f"mesh {mesh}",
        "compute fp32",
        "recompute blocks",
    )
    base = BASE.get(shorthand, ["shard batch over fsdp"] if "fsdp" in names else [])
    base = [b for b in base if "replica" not in b or "replica" in names]
    one = report(folder, Written(head, (*base, shorthand)))
    other = report(folder, Written(head, (*base, *SHORTHANDS[shorthand])))
    assert figures(one) == figures(other)


def test_seconds_and_bytes_sum(folder: Path) -> None:
    """The identities hold on random plans as on the bundled ones."""

    @MANY
    @given(plan=written())
    def holds(plan: Written) -> None:
        found = report(folder, plan)
        step, memory, rows = found.step, found.memory, found.collectives
        assert step and memory and rows is not None
        parts = (step.compute_s, step.recompute_s, step.exposed_comm_s, step.bubble_s, step.optimizer_s)
        assert isclose(sum(parts) + step.offload_s + step.overhead_s, step.time_s, rel_tol=1e-9)
        assert isclose(sum(r.exposed_s for r in rows), step.exposed_comm_s, rel_tol=1e-9, abs_tol=1e-15)
        assert step.bubble_s >= -1e-9 * step.time_s
        for stage in memory.stages:
            m = stage.per_device_gib
            total = m.params + m.grads + m.optimizer + m.activations + m.buffers + m.comm_buffers + m.reserve
            assert isclose(total, m.total, rel_tol=1e-9)

    holds()
