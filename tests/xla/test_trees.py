"""Users' models in Linen, NNX, Equinox, plain dicts and as in MaxText train under a plan as on one device.

One process of eight virtual devices holds all cases; each test reads its row.
"""

from __future__ import annotations

from math import prod

import pytest

from tests.launches import Row, case, tier

LAYOUTS = {"fsdp": 8, "fsdp_tp": 8, "fsdp_tp_sp": 8, "zero1_tp": 2}
"""Devices that divide a parameter whose dims all divide."""
KINDS = ("linen", "nnx", "equinox", "plain", "maxtext")
CASES = [f"{kind}:{layout}" for kind in KINDS for layout in ("fsdp", "fsdp_tp_sp")]
CASES += ["plain:fsdp_tp", "nnx:zero1_tp", "maxtext:zero1_tp"]
IN_CI = {*(f"{kind}:fsdp_tp_sp" for kind in KINDS), "nnx:zero1_tp"}
"""A tree of each kind; `make all` trains all."""

SPECS = {
    "linen": {
        "params/words/embedding": "('tp', 'fsdp')",
        "params/blocks/query/kernel": "(None, 'fsdp', 'tp', None)",
        "params/blocks/out/kernel": "(None, 'tp', None, 'fsdp')",
        "params/blocks/up/bias": "(None, 'tp')",
    },
    "nnx": {
        "blocks/2/q/kernel/value": "('fsdp', 'tp')",
        "blocks/2/o/kernel/value": "('tp', 'fsdp')",
        "blocks/2/q/bias/value": "(('tp', 'fsdp'),)",
        "blocks/2/first/scale/value": "('fsdp',)",
    },
    "equinox": {
        "blocks/1/qkv/weight": "('fsdp', None)",
        "blocks/1/back/weight": "('fsdp', 'tp')",
        "blocks/1/wide/bias": "('tp',)",
        "norm/bias": "('fsdp',)",
    },
    "plain": {
        "h/attn/q": "(None, 'fsdp', 'tp')",
        "h/attn/o": "(None, 'tp', 'fsdp')",
        "h/scales/0": "(None, 'fsdp')",
        "lm_head": "('fsdp', 'tp')",
    },
    "maxtext": {
        "params/layers/query/kernel": "('fsdp', None, 'tp', None)",
        "params/layers/out/kernel": "('tp', None, None, 'fsdp')",
        "params/layers/wo/kernel": "('tp', None, 'fsdp')",
        "params/decoder_norm/scale": "('fsdp',)",
    },
}
"""Where some leaves lie with fsdp and tp, written by hand."""


@pytest.mark.parametrize("name", [case("trees", name, *tier(name, IN_CI, ())) for name in CASES])
def test_trains_as_one_device(name: str, row: Row) -> None:
    assert "failed" not in row, row["failed"]
    assert len(set(row["losses"])) == 3, "a loss that does not move proves nothing"
    assert row["loss"] <= 1e-5, row
    assert max(row["gradient"]) <= 1e-5, row
    assert row["parameters"] <= 1e-6, row


@pytest.mark.parametrize("name", [case("trees", name, *tier(name, IN_CI, ())) for name in CASES])
def test_lies_divided_as_the_plan_says(name: str, row: Row) -> None:
    kind, layout = name.split(":")
    assert row["astray"] == [], "a step moved these leaves"
    if layout == "fsdp_tp_sp":
        assert {path: row["specs"][path] for path in SPECS[kind]} == SPECS[kind]
    unnamed = {"equinox": 0.25, "linen": 0.03}.get(kind, 0.01)
    share = 1 / LAYOUTS[layout]
    assert share <= row["share"] <= share * (1 + unnamed), "only norms and dims without a name are held by more devices"
    if layout == "zero1_tp":
        assert row["share_of_moments"] < 0.13 < prod((2, row["share"])), "moments are divided over dp too"
