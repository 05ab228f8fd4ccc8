"""Collectives that XLA issues for a plan: each rule by its effect, all of them against compiled programs."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

import pytest

from planc.backends.xla.audit.predict import by_axis, predicted
from planc.backends.xla.rules import ORDER, realise
from planc.ir.audit import AxisWire, judged
from planc.ir.collective import Collective
from planc.ir.sharding import Sharded
from planc.language.build import build_file
from planc.sharding.collectives import semantic_collectives
from tests.audit.tpu_cases import plan_of as audited_plan
from tests.audit.tpu_predictions import without_options
from tests.plans import propagated
from tests.random_plans.draw import draw
from tests.random_plans.promises import write
from tests.xla.cases import FLOAT8, FSDP, FSDP_TP, LAYOUTS, NARROW, SP, TP, plan_of
from tests.xla.moe_cases import moe_sharded
from tests.xla.test_tpu_rules import rows as tpu_rows

OTHERS = {
    "dp_tp_blocks": ("dp 2 > tp 2", "use ddp over dp", TP, "recompute blocks"),
    "bf16_blocks": (*FSDP_TP, "compute bf16 reduce fp32", "recompute blocks"),
    "gpipe_fsdp": ("pp 2 > fsdp 2", FSDP, "use pp over pp as gpipe"),
    "float8_rowwise": ("fsdp 4", FSDP, "quantize ffn, attention as float8(rowwise) except layers 0"),
    "int8_step": FLOAT8["int8_fp32_step"],
    "tied_bf16_blocks": (*FSDP_TP, "compute bf16 reduce fp32", "recompute blocks"),
    "tied_circular": ("pp 2 > dp 2", "use zero1 over dp", "split layers over pp as circular(chunks = 2)"),
}
COMPILED = {
    # layout: wire bytes per device and step, summed over the optimized HLO of jax 0.10.2 on virtual CPU devices
    "fsdp_tp_sp": {
        ("all_gather", "fsdp"): 1536896,
        ("all_gather", "tp"): 638976,
        ("all_reduce", "fsdp"): 1657920,
        ("all_reduce", "tp"): 1486116,
    },
    "dp_tp_blocks": {("all_reduce", "dp"): 1657872, ("all_reduce", "tp"): 1673508},
    "bf16_blocks": {
        ("all_gather", "fsdp"): 1536896,
        ("all_gather", "tp"): 638976,
        ("all_reduce", "fsdp"): 1657920,
        ("all_reduce", "tp"): 1682724,
    },
    "zero1": {("all_gather", "dp"): 619968, ("all_reduce", "dp"): 2479956},
    "float8_rowwise": {("all_gather", "fsdp"): 2332992, ("all_reduce", "fsdp"): 2522652},
    "int8_step": {("all_gather", "fsdp"): 624576, ("all_reduce", "fsdp"): 2515380},
    "gpipe": {
        ("all_gather", "pp"): 202752,
        ("all_reduce", "pp"): 103356,
        ("all_to_all", "pp"): 175104,
        ("send_recv", "pp"): 202752,
    },
    "gpipe_fsdp": {
        ("all_gather", "fsdp"): 1928832,
        ("all_gather", "pp"): 61440,
        ("all_reduce", "fsdp"): 2067008,
        ("all_reduce", "pp"): 51624,
        ("all_to_all", "pp"): 55296,
        ("send_recv", "pp"): 61440,
    },
    "circular": {
        ("all_gather", "dp"): 223872,
        ("all_gather", "pp"): 49152,
        ("all_reduce", "dp"): 1877520,
        ("all_reduce", "pp"): 68904,
        ("all_to_all", "pp"): 49152,
        ("send_recv", "pp"): 221184,
    },
    "tied_fsdp_tp_sp": {
        ("all_gather", "fsdp"): 1528576,
        ("all_gather", "tp"): 638976,
        ("all_reduce", "fsdp"): 1662012,
        ("all_reduce", "tp"): 1486112,
    },
    "tied_bf16_blocks": {
        ("all_gather", "fsdp"): 1528576,
        ("all_gather", "tp"): 638976,
        ("all_reduce", "fsdp"): 1662012,
        ("all_reduce", "tp"): 1682720,
    },
    "tied_zero1": {("all_gather", "dp"): 595008, ("all_reduce", "dp"): 2486094},
    "tied_gpipe": {
        ("all_gather", "fsdp"): 1929856,
        ("all_gather", "pp"): 61440,
        ("all_reduce", "fsdp"): 2072124,
        ("all_reduce", "pp"): 53160,
        ("all_to_all", "pp"): 55296,
        ("send_recv", "pp"): 61440,
    },
    "tied_circular": {
        ("all_gather", "dp"): 207232,
        ("all_gather", "pp"): 49152,
        ("all_reduce", "dp"): 1882640,
        ("all_reduce", "pp"): 70952,
        ("all_to_all", "pp"): 49152,
        ("send_recv", "pp"): 221184,
    },
    "recompute_every": {
        ("all_gather", "fsdp"): 1536896,
        ("all_gather", "tp"): 638976,
        ("all_reduce", "fsdp"): 1657920,
        ("all_reduce", "tp"): 1584412,
    },
    "one_f_one_b": {
        ("all_gather", "pp"): 175104,
        ("all_reduce", "pp"): 103356,
        ("all_to_all", "pp"): 175104,
        ("send_recv", "pp"): 202752,
    },
    "one_f_one_b_fsdp_tp_sp": {
        ("all_gather", "fsdp"): 967040,
        ("all_gather", "pp"): 27648,
        ("all_gather", "tp"): 405504,
        ("all_reduce", "fsdp"): 1036608,
        ("all_reduce", "pp"): 25896,
        ("all_reduce", "tp"): 916644,
        ("all_to_all", "pp"): 27648,
        ("send_recv", "pp"): 27648,
    },
    "interleaved": {
        ("all_gather", "dp"): 223872,
        ("all_gather", "pp"): 49152,
        ("all_reduce", "dp"): 1877520,
        ("all_reduce", "pp"): 68904,
        ("all_to_all", "pp"): 49152,
        ("send_recv", "pp"): 221184,
    },
    "cp": {("all_gather", "cp"): 294912, ("all_reduce", "cp"): 10509360},  # and 360 bytes of tokens' numbers
    "ring": {("all_reduce", "cp"): 9919536, ("send_recv", "cp"): 983040},  # and 144 bytes of tokens' numbers
}
DRAWN = tomllib.loads(Path(__file__).with_name("drawn_wire.toml").read_text())
DRAWN_WITHIN = 0.04
SCALARS_BYTES = 100
"""The loss and the norm's parts are summed in a few scalars that the rules do not count one by one."""


def of(name: str, cluster: str = "") -> Sharded:
    mesh, *sentences = {**LAYOUTS, **OTHERS}[name]
    return propagated(plan_of(name, mesh, *sentences, cluster=cluster))


def rows(name: str, cluster: str = "") -> tuple[Collective, ...]:
    sharded = of(name, cluster)
    return realise(sharded, semantic_collectives(sharded))


@pytest.mark.parametrize("name", COMPILED)
def test_the_rules_give_what_was_compiled(name: str) -> None:
    wire: Counter[tuple[str, str]] = Counter()
    for row in rows(name):
        if row.carries != "scalar" and row.stage == 0:
            wire[row.op, row.axis] += round(row.wire_bytes)
    assert wire.keys() == COMPILED[name].keys()
    for key, seen in COMPILED[name].items():
        assert 0 <= seen - wire[key] <= SCALARS_BYTES, (key, wire[key], seen)


def drawn_case(name: str, folder: Path) -> Sharded:
    path = folder / f"{name}.plan"
    path.write_text(DRAWN[name]["plan"])
    plan = build_file(path, target="xla").plan
    assert plan is not None
    return propagated(plan)


@pytest.mark.parametrize("name", DRAWN)
def test_drawn_plans_move_what_was_compiled(name: str, tmp_path: Path) -> None:
    """Over each axis, whatever the operation: sums over ranks of the batch and of the sequence, of each use of a tied
    table, of what only the optimizer divides; keys that a pipeline gathers again; what Muon makes orthogonal;
    experts that no ranks divide."""
    said, seen = by_axis(predicted(drawn_case(name, tmp_path))), DRAWN[name]["wire"]
    axes = {*said, *seen}
    rows = (AxisWire(axis=a, predicted_bytes=said.get(a, 0), observed_bytes=seen.get(a, 0)) for a in axes)
    assert [w for w in judged(tuple(rows)) if abs(w.relative) > DRAWN_WITHIN] == []


FSDP_OF_SLICES = "use hsdp over replica, fsdp"


def test_every_rule_marks_what_it_changes(tmp_path: Path) -> None:
    names = (
        "fsdp_tp_sp",
        "dp_tp_blocks",
        "float8_rowwise",
        "zero1",
        "bf16_blocks",
        "gpipe_fsdp",
        "tied_zero1",
        "on_embed",
    )
    found = [rows(name) for name in names]
    with without_options():
        found += [tpu_rows(name) for name in ("fsdp_v6e", "sp_v5p", "tp_v5p", "whole_v5p")]
    others = [moe_sharded(name) for name in ("ep_per_step", "capacity", "moe_dp_tp_sp", "deepseek_tp_cp")]
    others += [propagated(plan_of("bf16_ring", *NARROW["bf16_ring"]))]
    others += [propagated(plan_of("slices", "replica 2 > fsdp 4", FSDP_OF_SLICES, cluster="2 x tpu_v5p(2x2x1)"))]
    others += [drawn_case(name, tmp_path) for name in ("random_72", "random_212")]
    audited = ["llama3_8b_v5p_128_hsdp", "llama3_8b_v6e_256", "mixtral_8x7b_v5p_2_layers"]
    audited += ["llama3_8b_7x_64_hsdp", "qwen3_8b_v6e_offload_hidden"]
    others += [propagated(audited_plan(name)) for name in audited]
    with without_options():
        found += [realise(sharded, semantic_collectives(sharded)) for sharded in others]
    seen = {rule for each in found for row in each for rule in row.realised_by}
    only_drops = {"one_gather_of_a_tied_table", "pass_keys_once", "shard_whole_heads"}
    assert seen == {rule.NAME for rule in ORDER} - only_drops


def test_sums_of_every_microbatch() -> None:
    plan = of("dp_tp_blocks").plan
    grads = [r for r in rows("dp_tp_blocks") if r.tensor == "output.weight" and r.carries == "grad"]
    assert [(r.op, r.count) for r in grads] == [("all_reduce", plan.microbatches)]


def test_a_kept_activation_is_gathered_again_for_the_weights_gradient() -> None:
    backward = [r for r in rows("fsdp_tp_sp") if r.tensor == "ffn.in" and r.phase == "backward"]
    assert {"all_gather", "all_reduce"} == {r.op for r in backward}
    replayed = [r for r in rows("bf16_blocks") if r.tensor == "ffn.in" and r.op == "all_gather"]
    assert {r.phase for r in replayed} == {"forward", "recompute"}


def test_a_torus_keeps_its_reduce_scatters_and_narrow_gathers() -> None:
    mesh = ("fsdp 4 > tp 2", FSDP, TP, SP, "compute bf16 reduce fp32")
    sharded = propagated(plan_of("torus", *mesh, cluster="tpu_v5p(2x2x2)"))
    found = realise(sharded, semantic_collectives(sharded))
    assert {"reduce_scatter", "all_gather"} <= {r.op for r in found}
    assert {r.dtype for r in found if r.carries == "param" and "wq" in r.tensor} == {"bf16"}
    assert {r.dtype for r in found if r.carries == "param" and "norm" in r.tensor} == {"fp32"}


def test_gradients_that_are_summed_are_summed_on_every_stage(tmp_path: Path) -> None:
    """Experts of pipelines in drawn plans too, whose sums the program says itself."""
    routed = 0
    for seed in range(40):
        plan = build_file(write(draw(seed, small=True), tmp_path), target="xla").plan
        sharded = propagated(plan)
        semantic = semantic_collectives(sharded)
        issued = realise(sharded, semantic)
        wanted, found = ({(r.tensor, r.stage) for r in rows if r.carries == "grad"} for rows in (semantic, issued))
        assert wanted <= found, (seed, wanted - found)
        routed += plan.pipeline > 1 and any("experts" in tensor for tensor, _ in wanted)
    assert routed > 1


def test_a_replay_round_a_ring_of_two_passes_its_keys_for_the_backward_too() -> None:
    """Read from six layers of a Llama with cp 2: 96 sends of an eighth of keys or values, and not 120."""
    passed = {}
    for said in ("recompute none", "recompute blocks"):
        sharded = propagated(plan_of("ring", "cp 2", "shard sequence over cp", "attention.core as ring", said))
        passed[said] = sum(r.count for r in realise(sharded, semantic_collectives(sharded)) if r.op == "send_recv")
    assert passed["recompute blocks"] == passed["recompute none"] > 0
