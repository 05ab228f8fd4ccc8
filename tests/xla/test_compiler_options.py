"""Options of the TPU compiler in programs, and the rules against steps that were compiled with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.backends.xla.analysis.compiler_options import SPARSE_CORE, compiler_options
from planc.backends.xla.analysis.gathered_rows import gathered_rows
from planc.backends.xla.audit.predict import predicted
from planc.backends.xla.audit.run import predicted_bytes
from planc.backends.xla.emit.program import emit
from planc.backends.xla.versions import JAX
from planc.driver import load
from tests.audit.tpu_cases import plan_of as audited_plan
from tests.plans import propagated
from tests.xla.cases import FSDP, SP, TP, plan_of

ROOT = Path(__file__).parents[2]
COMPILED_BYTES = {
    # what a device sends in a step: libtpu 0.0.42.1 with the options of the table, wraps included
    "llama3_8b_v5p_2_layers": {
        ("all_gather", "fsdp", "bf16"): 6.5379e9,
        ("reduce_scatter", "fsdp", "fp32"): 11.7587e9,
        ("send_recv", "fsdp", "fp32"): 0.0488e9,
    },
    "llama3_70b_v5p_2_layers": {
        ("all_gather", "fsdp", "bf16"): 7.2553e9,
        ("all_gather", "fsdp", "fp32"): 4.1382e9,
        ("reduce_scatter", "fsdp", "fp32"): 15.0122e9,
        ("reduce_scatter", "tp", "bf16"): 4.4292e9,
        ("reduce_scatter", "tp", "fp32"): 0.8053e9,
    },
    "llama3_8b_v6e_2_layers": {
        ("all_gather", "fsdp", "bf16"): 0.6880e9,
        ("all_gather", "fsdp", "fp32"): 0.5171e9,
        ("all_reduce", "fsdp", "fp32"): 2.0688e9,
        ("reduce_scatter", "fsdp", "fp32"): 0.4294e9,
        ("reduce_scatter", "tp", "bf16"): 0.5536e9,
        ("reduce_scatter", "tp", "fp32"): 0.1007e9,
    },
    "mixtral_8x7b_v5p_dropless": {
        ("all_gather", "fsdp", "bf16"): 7.7729e9,
        ("all_reduce", "ep", "fp32"): 0.2043e9,
        ("all_reduce", "fsdp+ep", "fp32"): 4.1622e9,
        ("all_to_all", "ep", "bf16"): 2.3488e9,
        ("all_to_all", "ep", "fp32"): 0.0881e9,
        ("reduce_scatter", "fsdp", "fp32"): 8.5102e9,
    },
}
COMMITTED_BYTES = {
    # plans/llama3_70b_v5p.plan: every large collective asynchronous, 17.73 G estimated cycles, a peak of 21.743 GiB
    ("all_gather", "fsdp", "bf16"): 67.8986e9,
    ("all_gather", "fsdp", "fp32"): 1.0446e9,
    ("all_gather", "tp", "bf16"): 194.0788e9,
    ("reduce_scatter", "fsdp", "fp32"): 69.4500e9,
    ("reduce_scatter", "tp", "bf16"): 161.4639e9,
    ("reduce_scatter", "tp", "fp32"): 0.8053e9,
}
NOT_READ = {("all_gather", "tp", "bf16")}
"""Compiled before the program stated the rows that matmuls share."""


@pytest.mark.parametrize("name", COMPILED_BYTES)
def test_the_rules_give_what_was_compiled_with_options(name: str) -> None:
    found = {key: total.bytes for key, total in predicted(propagated(audited_plan(name))).items()}
    large = {key for key, sent in found.items() if sent > 5e6}
    assert large - NOT_READ == COMPILED_BYTES[name].keys()
    for key, seen in COMPILED_BYTES[name].items():
        assert found[key] == pytest.approx(seen, rel=1e-3), key


@pytest.mark.parametrize("chunks", [1, 8])
def test_a_tables_gradient_is_summed_in_fp32_though_the_plan_reduces_in_bf16(chunks: int) -> None:
    """llama3_8b over fsdp 64 of v5p 4x4x4, all layers, compiled with the loss whole and in chunks: bytes sent."""
    more = {"model": "llama3_8b", "batch": "64 x 8192 tokens microbatch 1", "cluster": "tpu_v5p(4x4x4)"}
    said = (FSDP, "recompute blocks", "compute bf16 reduce bf16", f"loss in {chunks} chunks")
    found = {
        key: total.bytes / 2**20 for key, total in predicted(propagated(plan_of("p", "fsdp 64", *said, **more))).items()
    }
    seen = {("all_gather", "bf16"): 28180.688, ("reduce_scatter", "bf16"): 14096.25, ("reduce_scatter", "fp32"): 1984.5}
    for (op, dtype), sent in seen.items():
        assert found[op, "fsdp", dtype] == pytest.approx(sent, rel=1e-3), op


def test_tokens_looked_up_by_columns_send_what_was_compiled() -> None:
    """llama3_8b over fsdp 256 of v6e 16x16, all layers, by jax 0.11.2 and libtpu 0.0.48.1: bytes sent."""
    more = {"model": "llama3_8b", "batch": "256 x 8192 tokens microbatch 1", "cluster": "tpu_v6e(16x16)"}
    stored = ("shard batch over fsdp", "store params, grads, optimizer over fsdp on embed")
    said = (*stored, "recompute blocks", "compute bf16 reduce bf16")
    found = {key: total.bytes for key, total in predicted(propagated(plan_of("p", "fsdp 256", *said, **more))).items()}
    seen = {("all_gather", "bf16"): 28.855e9, ("all_to_all", "bf16"): 0.1337e9, ("all_gather", "int32"): 0.00836e9}
    for (op, dtype), sent in seen.items():
        assert found[op, "fsdp", dtype] == pytest.approx(sent, rel=1e-3), op


def test_the_committed_plan_sends_and_holds_what_was_compiled() -> None:
    sharded = propagated(load(ROOT / "plans" / "llama3_70b_v5p.plan"))
    found = {key: total.bytes for key, total in predicted(sharded).items()}
    assert {key for key, sent in found.items() if sent > 5e8} == COMMITTED_BYTES.keys()
    for key, seen in COMMITTED_BYTES.items():
        assert found[key] == pytest.approx(seen, rel=1e-3), key
    assert sum(sent for (_, axis, _), sent in found.items() if axis == "tp") <= 360e9
    assert sum(sent for (_, axis, _), sent in found.items() if axis == "fsdp") <= 145e9
    assert predicted_bytes(sharded) == pytest.approx(21.743 * 2**30, rel=0.04)


def sparse(options: dict[str, bool | int]) -> int:
    return sum(name.startswith(SPARSE_CORE) for name in options)


def options_of(
    cluster: str, model: str = "llama_micro", mesh: str = "fsdp 4 > tp 2", *more: str
) -> dict[str, bool | int]:
    sharded = propagated(plan_of("options", mesh, FSDP, *more, model=model, cluster=cluster))
    return compiler_options(sharded, JAX.pinned)


def test_options_are_those_of_the_chip_and_the_model() -> None:
    for chip in ("v5p(2x2x2)", "v6e(2x4)"):
        found = options_of(f"tpu_{chip}")
        assert sparse(found) == 5 and found["xla_tpu_scoped_vmem_limit_kib"] == 98304
    experts = options_of("tpu_v5p(2x2x2)", "mixtral_micro", "fsdp 8")
    assert sparse(experts) == 5 and experts["xla_tpu_scoped_vmem_limit_kib"] == 81920
    for chip in ("v5e(2x4)", "v4(2x2x2)", "7x(2x2x1)"):
        assert list(options_of(f"tpu_{chip}")) == ["xla_jf_spmd_threshold_for_windowed_einsum_mib"]
    assert options_of("8 x cpu_local") == {}


def test_one_sequence_in_parts_needs_an_option_of_the_old_compiler() -> None:
    name = "xla_tpu_use_minor_sharding_for_major_trivial_input"
    sentences = ("fsdp 4 > tp 2", FSDP, TP, SP)
    one, two = (
        propagated(plan_of("rows", *sentences, batch=f"16 x 64 tokens microbatch {n}", cluster="tpu_v5p(2x2x2)"))
        for n in (1, 2)
    )
    assert name in compiler_options(one, (0, 10)) and name not in compiler_options(two, (0, 10))
    assert name not in compiler_options(one, (0, 11))


def test_a_program_for_tpus_passes_its_options_and_no_other_does() -> None:
    tpu, host = (
        emit(propagated(plan_of("options", "fsdp 8", FSDP, cluster=c))) for c in ("tpu_v5p(2x2x2)", "8 x cpu_local")
    )
    assert tpu.count("compiler_options=_compiler_options(mesh)") == 3 and "TPU_OPTIONS" not in host


def test_matmuls_state_the_rows_that_they_share() -> None:
    """Queries, keys and values, gate and up; and the gradients of the ways out."""
    of = {"cluster": "tpu_v5p(2x2x2)", "batch": "16 x 64 tokens microbatch 1"}
    inputs, results = gathered_rows(propagated(plan_of("rows", "fsdp 4 > tp 2", FSDP, TP, SP, "compute bf16", **of)))
    assert {n.split(".")[-2] for n in inputs} == {"wq", "wk", "wv", "w1", "w3"}
    assert {n.split(".")[-2] for n in results} == {"wo", "w2"}
    assert {*inputs.values(), *results.values()} == {(("fsdp",), (), ())}
    alone = propagated(plan_of("rows", "fsdp 8", FSDP, "compute bf16", **of))
    assert gathered_rows(alone) == ({}, {})
