"""Properties that every op graph of the catalog must have, and those that tell the families apart."""

from __future__ import annotations

from math import prod

import pytest

from planc.catalog import build_model, model_names
from planc.ir.dims import DIMS, INNER
from planc.ir.model import EXPERTS, ROUTED, Model, Op

NAMES = tuple(model_names())
ENTRY = {"first": {"tokens"}, "last": {"hidden", "targets"}}
OF_THE_PLAN = {"batch", "sequence", "slots"}
"""Dims whose length the plan gives."""


def index_dims(model: Model, op: Op) -> set[str]:
    tensors = {d for t in (*op.inputs, op.output) for d in model.tensor[t].dims}
    return tensors | {d for p in op.params for d in model.param[p].dims}


@pytest.mark.parametrize("name", NAMES)
def test_every_op_reads_what_is_there(name: str) -> None:
    model = build_model(name)
    for section, ops in model.ops.items():
        there = set(ENTRY.get(section, {"hidden"}))
        for op in ops:
            assert set(op.inputs) <= there, op.name
            there.add(op.output)
            assert set(op.saves) <= {*op.inputs, op.output}, op.name
            assert set(op.whole_of) <= set(op.inputs), op.name
            assert set(op.whole) <= index_dims(model, op), op.name
        assert ops[-1].output == ("loss" if section == "last" else "hidden")
        assert len({op.name for op in ops}) == len(ops)


@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_is_made_or_given(name: str) -> None:
    model = build_model(name)
    made = {op.output for ops in model.ops.values() for op in ops}
    assert {t.name for t in model.tensors} == made | {"tokens", "targets"}


@pytest.mark.parametrize("name", NAMES)
def test_a_section_has_the_parameters_that_it_uses(name: str) -> None:
    model = build_model(name)
    for section, ops in model.ops.items():
        used = [p for op in ops for p in op.params]
        assert sorted(used) == sorted(p.name for p in model.params if section in p.sections)


@pytest.mark.parametrize("name", NAMES)
def test_every_dim_has_a_length(name: str) -> None:
    model = build_model(name)
    dims = {d for t in model.tensors for d in t.dims} | {d for p in model.params for d in p.dims}
    assert dims - OF_THE_PLAN == set(model.sizes) - {"layers", "ssm_chunk"}
    assert dims | set(model.sizes) <= {*DIMS, *INNER}


@pytest.mark.parametrize("name", NAMES)
def test_a_matmul_sums_over_what_its_output_lacks(name: str) -> None:
    """Its weight has the dims that it sums over and those that it makes, and no others but the experts."""
    model = build_model(name)
    for op in (op for ops in model.ops.values() for op in ops if op.kind == "matmul"):
        source, made = set(model.tensor[op.inputs[0]].dims), set(model.tensor[op.output].dims)
        weight = set(model.param[op.params[0]].dims)
        assert weight == (source ^ made) | (source & made & {"experts"}) and source - made, op.name
        for other in op.params[1:]:
            assert set(model.param[other].dims) == weight & made, op.name


@pytest.mark.parametrize("name", NAMES)
def test_layers_are_counted_one_by_one(name: str) -> None:
    model = build_model(name)
    kinds = [run.section for run in model.runs for _ in range(run.layers)] or ["block"] * model.layers
    assert len(kinds) == model.layers and sum(model.layers_of(s) for s in model.blocks) == model.layers
    once = [p for p in model.params if not set(p.sections) & set(model.blocks)]
    total = sum(model.elements(p) for p in once)
    for kind in kinds:
        total += sum(model.elements(p) for p in model.params if kind in p.sections)
    assert total == model.parameters


@pytest.mark.parametrize("name", NAMES)
def test_only_matrices_decay(name: str) -> None:
    model = build_model(name)
    for param in model.params:
        matrix = param.name.endswith("weight") and len(param.shape_dims) > 1
        assert param.decay == matrix and (param.init == "normal" or not matrix), param.name


@pytest.mark.parametrize("name", NAMES)
def test_attention_needs_its_keys_whole_and_not_its_rows(name: str) -> None:
    model = build_model(name)
    cores = [op for ops in model.ops.values() for op in ops if op.kind == "attention"]
    assert cores and {op.name for op in cores} == {"attention.core"}
    for op in cores:
        assert "sequence" not in op.whole
        assert [op.whole_of.get(t, ()) for t in op.inputs] == [(), ("sequence",), ("sequence",)]


@pytest.mark.parametrize("name", [n for n in NAMES if build_model(n).top_k])
def test_experts_are_reached_by_a_dispatch_and_left_by_a_combine(name: str) -> None:
    model = build_model(name)
    ops = {op.name: op for op in model.block_ops}
    assert ops["moe.route"].kind == "route" and ops["moe.combine"].kind == "combine"
    assert {model.tensor[t].region for t in ("moe.routed", "moe.returned")} == {ROUTED}
    assert {p.region for p in model.params if ".experts." in p.name} == {EXPERTS}
    assert {p.region for p in model.params if ".experts." not in p.name} == {""}
    with_experts = [section for section in model.blocks if "moe.route" in {op.name for op in model.ops[section]}]
    expert = sum(model.elements(p) for p in model.params if p.region == EXPERTS)
    unused = (1 - model.top_k / model.sizes["experts"]) * expert * sum(map(model.layers_of, with_experts))
    assert model.parameters - model.active_parameters == pytest.approx(unused, rel=1e-6)


def test_deepseek_begins_with_dense_layers() -> None:
    model = build_model("deepseek_v3")
    assert [(run.section, run.layers) for run in model.runs] == [("dense", 3), ("block", 58)]
    assert "layers.*.feed_forward.w1.weight" not in {p for op in model.ops["block"] for p in op.params}
    shared = model.param["layers.*.attention.wo.weight"]
    assert shared.sections == ("dense", "block") and model.copies(shared) == 61


def test_latent_attention_has_narrow_latents_and_one_rotary_key() -> None:
    model = build_model("deepseek_v3")
    assert model.sizes["qk_head_dim"] == 192 and "kv_heads" not in model.sizes
    assert model.shape(model.param["layers.*.attention.wq_b.weight"]) == (128 * 192, 1536)
    down = {op.name for op in model.ops["block"] if op.name.startswith("mla.down_proj.")}
    assert down == {"mla.down_proj.q", "mla.down_proj.kv", "mla.down_proj.k_rope"}
    kv = sum(prod(model.shape(model.param[f"layers.*.attention.{w}.weight"])) for w in ("wk_b", "wv_b"))
    assert kv == 512 * 128 * (128 + 128)  # kv_b_proj of the published weights
    down_kv = sum(prod(model.shape(model.param[f"layers.*.attention.{w}.weight"])) for w in ("wkv_a", "wk_rope"))
    assert down_kv == 7168 * (512 + 64)  # kv_a_proj_with_mqa


def test_gpt_oss_slides_in_every_other_layer() -> None:
    model = build_model("gpt_oss_120b")
    assert [run.section for run in model.runs] == ["sliding", "block"] * 18
    window = {s: op.window for s in model.blocks for op in model.ops[s] if op.kind == "attention"}
    assert window == {"sliding": 128, "block": 0}
    assert model.shape(model.param["layers.*.attention.head_sinks.weight"]) == (64,)


def test_biases_behind_a_sum_over_a_divided_dim_are_added_after_it() -> None:
    """Added by each rank to its part of the sum, the bias would count as often as there are ranks."""
    model = build_model("gpt3_175b")
    users = [(p, op.name) for op in model.ops["block"] for p in op.params if p.endswith((".wo.bias", ".w2.bias"))]
    assert users == [
        ("layers.*.attention.wo.bias", "attention.add"),
        ("layers.*.feed_forward.w2.bias", "ffn.add"),
    ]


def test_a_tied_weight_is_one_parameter_of_both_ends() -> None:
    model = build_model("llama3_2_1b")
    tied = model.param["tok_embeddings.weight"]
    assert tied.sections == ("first", "last") and model.copies(tied) == 1
    assert "output.weight" not in model.param and model.tied


def test_a_window_is_the_op_s_and_not_the_graph_s() -> None:
    core = next(op for op in build_model("mistral_7b").ops["block"] if op.kind == "attention")
    assert core.window == 4096


def test_sizes_may_be_changed() -> None:
    model = build_model("deepseek_v3", {"layers": 5, "experts": 16})
    assert [(run.section, run.layers) for run in model.runs] == [("dense", 3), ("block", 2)]
    assert model.shape(model.param["layers.*.moe.experts.w2.weight"]) == (16, 7168, 2048)
    assert len(build_model("gpt_oss_20b", {"layers": 6}).runs) == 6
    assert build_model("deepseek_v3", {"rope_dim": 32}).sizes["qk_head_dim"] == 160


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("deepseek_v3", {"layers": 3}, "at least 4"),
        ("deepseek_v3", {"qk_head_dim": 200}, "nope_dim"),
        ("mixtral_8x7b", {"experts": 1}, "2 experts, and there are 1"),
        ("gpt_oss_20b", {"layers": 10**9}, "more than"),
    ],
)
def test_sizes_that_make_no_model_are_refused(name: str, changes: dict[str, int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        build_model(name, changes)
