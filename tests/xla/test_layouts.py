"""Where parameters are cut: by dimension, by the plan's word, by an override, or not at all."""

from __future__ import annotations

from planc.backends.xla.analysis.layouts import Spec, Use, param_spec
from planc.backends.xla.analysis.padding import padded
from planc.backends.xla.analysis.stacked_params import Stack, stacks_of
from planc.backends.xla.emit.program import emit
from planc.ir.sharding import Sharded
from tests.plans import propagated
from tests.xla.cases import plan_of, sharded

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


def test_stages_of_unequal_length_are_filled_up() -> None:
    """At their ends, so that every rank has as many layers as the longest."""
    one = stacks_of(sharded("unequal_stages").plan)
    assert one[W1] == Stack((6,), (0, 1, 2, 3, None, None))
    assert list(one[W1].places) == [(0, 0), (1, 1), (2, 2), (3, 3)]
    of_chunks = stacks_of(sharded("unequal_stages_interleaved").plan)
    assert of_chunks[W1] == Stack((2, 4), (None, None, 0, 1, 2, None, 3, None))
    assert "norm.weight" not in one
