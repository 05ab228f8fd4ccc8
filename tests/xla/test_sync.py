"""The emitted sync in JAX: every shard of the generator equals its slice of the whole model, on its rank's device."""

from __future__ import annotations

import pytest

from tests.launches import Row, case, tier
from tests.sync_cases import PAIRS, QUICK, XLA_REFUSES

NAMES = [name for name in PAIRS if PAIRS[name].trainer not in XLA_REFUSES]
IN_CI = tuple(NAMES)[::4]


@pytest.mark.parametrize("name", [case("sync-jax", n, *tier(n, IN_CI, QUICK)) for n in NAMES])
def test_the_generator_has_its_slices_synced_and_loaded(name: str, row: Row) -> None:
    assert (row["wrong"], row["elsewhere"], row["missing"]) == ([], [], []) and row["shards"] > 0
    assert 0 < row["read"] <= row["needed"], "of the checkpoint, the parts of the devices"
