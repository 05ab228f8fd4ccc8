"""Caches give each owner its own results, by key, and share them only when told to."""

from __future__ import annotations

import doctest
from dataclasses import replace

import pytest

from planc.checks import assume_checked
from planc.driver import load
from planc.ir import cache
from planc.ir.cache import Cache, cached_on
from planc.sharding.local import tensor_bytes
from planc.sharding.propagate import propagate
from planc.sharding.stage_assignment import sections_on
from tests.plans import ROOT


class Owner:
    """Something with a cache, and a count of what was computed for it."""

    def __init__(self) -> None:
        self.cache, self.computed = Cache(), 0


@cached_on(lambda owner, n: (owner.cache, n))
def square(owner: Owner, n: int) -> int | None:
    owner.computed += 1
    return n * n or None


def test_results_are_kept_by_key_on_their_owner() -> None:
    one, other = Owner(), Owner()
    assert [square(one, n) for n in (2, 3, 2, 3)] == [4, 9, 4, 9] and one.computed == 2
    assert square(other, 2) == 4 and other.computed == 1
    assert square(one, 0) is None and square(one, 0) is None and one.computed == 3


@cached_on(lambda owner: (owner.cache, ()))
def failing(owner: Owner) -> int:
    owner.computed += 1
    raise KeyError("its own")


def test_a_functions_own_error_is_its_own() -> None:
    owner = Owner()
    for _ in range(2):
        with pytest.raises(KeyError, match="its own") as error:
            failing(owner)
        assert error.value.__context__ is None
    assert owner.computed == 2


def test_owners_share_what_they_are_told_to() -> None:
    one, other = Owner(), Owner()
    square(one, 2)
    other.cache.share(one.cache, square)
    assert square(other, 2) == 4 and other.computed == 0
    assert square(other, 3) == square(one, 3) == 9 and (one.computed, other.computed) == (1, 1)


def test_a_plan_of_other_sizes_has_results_of_its_own() -> None:
    plan = load(ROOT / "plans" / "llama3_70b_h100.plan")
    sharded = propagate(assume_checked(plan))
    name = sharded.ops["block"][-1].op.output
    layout = sharded.declared(name)
    twice = replace(plan.batch, microbatch_sequences=2 * plan.batch.microbatch_sequences)
    larger = plan.resized(plan.mesh, twice, plan.split)
    assert tensor_bytes(larger, name, layout) == 2 * tensor_bytes(plan, name, layout)
    assert sharded.resized(larger).layout_cache is sharded.layout_cache
    assert sections_on(plan, 0) is sections_on(plan, 0) and sections_on(larger, 0) is not sections_on(plan, 0)


def test_examples() -> None:
    assert doctest.testmod(cache) == doctest.TestResults(failed=0, attempted=5)
