"""Where parameters are cut: by dimension, by the plan's word, by an override, or not at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planc.backends.xla.analysis.layouts import Spec, Use, activation_spec, param_spec, summed_first
from planc.backends.xla.analysis.lookup import looked_up_by_columns
from planc.backends.xla.analysis.padding import padded
from planc.backends.xla.analysis.slices import ranks_over_slices, whole_axes
from planc.backends.xla.analysis.stacked_params import StackedDims, stacks_of
from planc.backends.xla.emit.program import emit
from planc.backends.xla.emit.tables import exchanged
from planc.backends.xla.rules import realise
from planc.checks import check_plan
from planc.ir.sharding import ParamSharding, Sharded
from planc.lowering import lower_plan
from planc.sharding.collectives import semantic_collectives
from tests.plans import propagated
from tests.xla.cases import LAYOUTS, SP, TP, plan_of, sharded

W1, WO = "layers.*.feed_forward.w1.weight", "layers.*.attention.wo.weight"


def spec(of: Sharded, name: str, use: Use = "params") -> Spec:
    return param_spec(of.plan, of.param[name], use)


def test_the_largest_dimension_that_divides_is_cut() -> None:
    of = sharded("fsdp")
    assert spec(of, W1) == ((), ("fsdp",))  # [182, 64]: 182 is no multiple of 4
    assert spec(of, "layers.*.feed_forward.w2.weight") == (("fsdp",), ())
    assert spec(of, WO) == (("fsdp",), ())  # [64, 64]: the first of equals
    assert spec(of, W1, "used") == ((), ())


def test_tensor_parallelism_goes_first() -> None:
    of = sharded("fsdp_tp_sp")
    assert spec(of, W1) == (("tp",), ("fsdp",))
    assert spec(of, WO) == (("fsdp",), ("tp",))
    assert spec(of, "norm.weight") == (("fsdp",),)


def test_the_plan_names_the_dimension() -> None:
    of = sharded("on_embed")
    assert spec(of, "layers.*.attention.wq.weight") == ((), ("fsdp",))
    assert spec(of, WO) == (("fsdp",), ())


def test_tokens_are_looked_up_by_columns_where_that_sends_less() -> None:
    """134 rows of the table and of its gradient against two exchanges of a rank's rows, all in fp32."""
    layout, table = LAYOUTS["on_embed"], "tok_embeddings.weight"

    def of_batch(batch: str, *more: str) -> ParamSharding | None:
        return looked_up_by_columns(propagated(plan_of("columns", *layout, *more, batch=batch)))

    few, many = of_batch("4 x 133 tokens microbatch 1"), of_batch("4 x 135 tokens microbatch 1")
    assert few is not None and few.param.name == table and many is None
    assert of_batch("4 x 133 tokens microbatch 1", "gather params per step") is None
    assert looked_up_by_columns(sharded("fsdp")) is None and looked_up_by_columns(sharded("fsdp_tp_sp")) is None
    of = sharded("on_embed")
    sent = {row.op for row in realise(of, semantic_collectives(of)) if row.tensor in (table, "hidden", "tokens")}
    assert sent == {"all_gather", "all_to_all"}
    assert f'"{table}": P(None, "fsdp"),' in emit(of).split("PARAMS = {")[0]


def test_an_override_leaves_a_weight_whole_in_use() -> None:
    assert spec(sharded("override"), WO, "used") == ((), ())


def test_replicas_hold_the_same_part() -> None:
    of = sharded("hsdp")
    assert all("replica" not in axes for name in of.param for axes in spec(of, name))


def test_what_nothing_divides_is_filled_up_and_says_so() -> None:
    of = propagated(
        plan_of(
            "odd", "fsdp 16", "use fsdp over fsdp", model="llama_micro(embed = 72)", batch="32 x 24 tokens microbatch 2"
        )
    )
    assert spec(of, "norm.weight") == (("fsdp",),) and padded(of)["norm.weight"] == (80,)
    assert '"norm.weight": ((72, 80),),  # 11.1% more' in emit(of)


def test_what_is_smaller_than_its_ranks_are_many_stays_whole_and_says_so() -> None:
    batch = "64 x 24 tokens microbatch 2"
    of = propagated(plan_of("many", "fsdp 32", "use fsdp over fsdp", model="qwen3_micro", batch=batch))
    name = "layers.*.attention.q_norm.weight"
    assert spec(of, name) == ((),) and name not in padded(of)
    assert f'"{name}": P(None),  # no dimension divides: kept whole' in emit(of)


def test_a_vocabulary_with_a_rest_is_stored_with_rows_for_all_ranks() -> None:
    of = sharded("uneven_tp")
    assert padded(of) == {"tok_embeddings.weight": (138, 64), "output.weight": (138, 64)}
    assert padded(sharded("fsdp_tp_sp")) == {}


def test_a_padded_head_stays_divided_on_its_way_into_a_pipeline() -> None:
    """Without its padding no tensor ranks divide it: XLA would gather it, and its gradient."""
    text = emit(sharded("uneven_tied_gpipe"))
    assert "_after_layers(loss_fn, _unpadded(filled), y, targets)" in text
    assert "own, of_stored = jax.vjp(_unpadded, params)" in text and "lambda path, g: g + ends.get(" in text
    assert "_unpadded" not in emit(sharded("gpipe"))


def test_stages_of_unequal_length_are_filled_up() -> None:
    """At their ends, so that every rank has as many layers as the longest."""
    one = stacks_of(sharded("unequal_stages").plan)
    assert one[W1] == StackedDims((6,), (0, 1, 2, 3, None, None))
    assert list(one[W1].places) == [(0, 0), (1, 1), (2, 2), (3, 3)]
    of_chunks = stacks_of(sharded("unequal_stages_interleaved").plan)
    assert of_chunks[W1] == StackedDims((2, 4), (None, None, 0, 1, 2, None, 3, None))
    assert "norm.weight" not in one


@pytest.mark.parametrize(
    ("cluster", "mesh", "across", "whole"),
    [
        ("2 x tpu_v5p(2x2x2)", "replica 2 > fsdp 4 > tp 2", {"replica": 2}, True),
        ("4 x tpu_v5p(2x2x1)", "replica 2 > fsdp 2 > tp 4", {"replica": 2, "fsdp": 2}, True),
        ("2 x tpu_v5p(2x2x2)", "fsdp 8 > tp 2", {"fsdp": 2}, False),
        ("3 x tpu_v5p(2x2x1)", "fsdp 2 > tp 6", {}, False),
        ("tpu_v5p(2x2x4)", "fsdp 8 > tp 2", {}, True),
    ],
)
def test_outer_axes_lie_across_slices(cluster: str, mesh: str, across: dict[str, int], whole: bool) -> None:
    """`fsdp 2 > tp 6` on slices of four: neither axis ends where a slice does."""
    shard = "shard batch over replica, fsdp" if "replica" in mesh else "shard batch over fsdp"
    of = propagated(plan_of("slices", mesh, shard, "replicate heads over tp", cluster=cluster)).plan
    assert ranks_over_slices(of) == across
    assert not across or whole_axes(of) == whole


def test_a_mesh_of_slices_is_laid_on_each_torus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emitted file says which ranks lie on different slices, and JAX places the others."""
    from jax.experimental import mesh_utils

    asked = []

    def laid(within: tuple[int, ...], across: tuple[int, ...], devices: list[int], **_: object) -> Any:
        asked.append((within, across))
        return np.asarray(devices[::-1]).reshape([a * b for a, b in zip(within, across, strict=True)])

    sentences = ("use hsdp over replica, fsdp", "use tp over tp")
    of = plan_of("slices", "replica 2 > fsdp 2 > tp 2", *sentences, cluster="2 x tpu_v5p(2x2x1)")
    program = lower_plan(check_plan(of), "xla").load()
    assert program.SLICES == {"replica": 2}
    in_order = program._on_slices(list(range(8)))  # integers are on no slice: as devices of a CPU
    monkeypatch.setattr(mesh_utils, "create_hybrid_device_mesh", laid)
    placed = program._on_slices(list(range(8)))
    assert asked == [((1, 2, 2), (2, 1, 1))]
    assert in_order.flatten().tolist() == [*range(8)] and placed.flatten().tolist() == [*range(7, -1, -1)]


def test_rows_of_one_region_are_cut_within_those_of_a_context_axis() -> None:
    """Whatever lies outermost in the mesh: else what enters the region moves between all ranks, and not within it."""
    for mesh in ("tp 2 > cp 2", "cp 2 > tp 2"):
        of = propagated(plan_of("order", mesh, TP, "shard sequence over cp", SP))
        assert activation_spec(of, "hidden")[1] == ("cp", "tp")
        assert activation_spec(of, "attention.q")[1] == ("cp",)


def test_xla_is_told_of_what_each_rank_has_whole() -> None:
    """Matmuls and lookups that nothing divides, between rows that a tensor axis divides: else it divides the work too,
    gathers results, and sums gradients over one axis more."""
    of = propagated(plan_of("whole", "fsdp 2 > tp 2", "use fsdp over fsdp", "shard heads over tp", SP))
    rests, whole = (("fsdp",), ("tp",), ()), (("fsdp",), (), ())
    read = ((), (rests, whole))
    assert exchanged(of) == {"ffn.out": ((whole,), ()), "ffn.in": read, "head.in": read}
    text = emit(of)
    assert (
        'made = P("fsdp", None, None)\n    return with_sharding_constraint(weight(name, table)[tokens], made)' in text
    )
    summed = text[text.index("SUMMED = GRADS") : text.index("NOT_DECAYED")]
    assert all(f"{part}.weight" in summed for part in ("w1", "w3", "w2", "output")) and "attention" not in summed
    assert exchanged(sharded("fsdp_tp_sp")) == {}


def test_ranks_that_make_one_product_lay_it_out_whole_first() -> None:
    """Where an axis divides no part of a matmul: else each of its ranks would make a part, and these would be permuted
    (on v5e 24.8 MiB of 133). A gradient that rests as its weight is used, or is laid out later, takes no two steps."""
    idle = ("fsdp 2 > tp 2", "use fsdp over fsdp", "use vocab over tp")
    of = propagated(plan_of("idle", *idle))
    found = {p.param.name for p in summed_first(of)}
    assert WO in found and W1 in found and "output.weight" not in found
    assert "dw = with_sharding_constraint(dw, SUMMED[_pattern(name)])" in emit(of)
    assert "SUMMED" not in emit(propagated(plan_of("later", *idle, "gather params per step")))
    assert summed_first(propagated(plan_of("whole", "dp 2 > tp 2", "use ddp over dp", "use vocab over tp"))) == []


def test_a_projection_is_divided_in_whole_heads() -> None:
    """As its weight lies: XLA would exchange parts of heads, or gather the weight and divide the rows instead."""
    within = "shard head_dim over tp in projection"
    of = propagated(plan_of("within", "fsdp 2 > tp 2", "use fsdp over fsdp", SP, within))
    whole, heads = ((("fsdp",), (), axes, ()) for axes in ((), ("tp",)))
    assert activation_spec(of, "attention.q") == whole
    made, read = exchanged(of)["attention.q"], exchanged(of)["attention.mixed"]
    assert made == ((heads,), ()) and read == ((), (heads,))
    assert '"attention.q": P("fsdp", None, None, None),  # all-gather heads over tp from attention.q' in emit(of)
    of = propagated(plan_of("within", "tp 2", "shard heads over tp", within, model="deepseek_micro(head_dim = 8)"))
    assert not {"attention.v", "attention.mixed"} & {*exchanged(of)}
    one = "llama_micro(kv_heads = 1, head_dim = 16)"
    of = propagated(plan_of("within", "fsdp 2 > tp 2", "use fsdp over fsdp", SP, within, model=one))
    assert exchanged(of)["attention.k"] == (((("fsdp",), (), (), ("tp",)),), ())


def test_a_gradient_in_a_pipeline_is_gathered_once() -> None:
    """On CPU devices alone: the TPU compiler was not seen to gather it twice."""
    mesh = ("pp 2 > fsdp 2 > tp 2", "use fsdp over fsdp", TP, SP, "use pp over pp as 1f1b")
    of = propagated(plan_of("pipeline", *mesh))
    whole = (("fsdp",), (), ())
    assert exchanged(of) == {"attention.out": ((whole,), ()), "ffn.out": ((whole,), ())}
    assert exchanged(propagated(plan_of("pipeline", *mesh, cluster="tpu_v5p(2x2x2)"))) == {}
