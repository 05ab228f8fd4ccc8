"""Collectives after the TPU compiler: the rules against training steps that it compiled without options.

Those with options are in test_compiler_options.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import pytest

from planc.backends.xla.analysis.peak_memory import peak_memory
from planc.backends.xla.rules import realise
from planc.backends.xla.rules.all_reduce_uneven_slices import fits_in_slices
from planc.backends.xla.rules.pad_scattered_rows import BUFFER_MIB, padded_rows, shifted_rows
from planc.ir.collective import Collective
from planc.ir.sharding import Sharded
from planc.sharding.collectives import semantic_collectives
from tests.audit.run_tpu import results
from tests.audit.tpu_cases import plan_of as audited_plan
from tests.audit.tpu_cases import plan_of as tpu_plan
from tests.audit.tpu_predictions import without_options
from tests.plans import propagated
from tests.xla.cases import FSDP, SP, TP, plan_of

LLAMA = "llama2_7b(layers = 4)"
BF16 = ("compute bf16 reduce fp32", "recompute blocks")
STEPS = {
    # name: (cluster, batch, mesh, sentences)
    "fsdp_v6e": ("tpu_v6e(4x8)", "64 x 4096 tokens microbatch 1", "fsdp 32", (FSDP,)),
    "sp_v5p": ("tpu_v5p(4x4x4)", "64 x 512 tokens microbatch 2", "fsdp 16 > tp 4", (FSDP, TP, SP)),
    "tp_v5p": ("tpu_v5p(4x4x4)", "64 x 512 tokens microbatch 1", "fsdp 16 > tp 4", (FSDP, TP, SP)),
    "whole_v5p": ("tpu_v5p(4x4x4)", "64 x 512 tokens microbatch 1", "fsdp 64", (FSDP,)),
}
COMPILED_MIB = {
    # sent by a device in a step: libtpu 0.0.42.1, windowed einsum off; what is left out is below 3 MiB
    "fsdp_v6e": {
        ("all_gather", "fsdp", "bf16"): 6709.562,
        ("reduce_scatter", "fsdp", "fp32"): 8649.0,
        ("send_recv", "fsdp", "fp32"): 679.391,
    },
    "sp_v5p": {
        ("all_gather", "fsdp", "bf16"): 1506.094,
        ("all_gather", "fsdp", "fp32"): 234.873,
        ("all_gather", "tp", "bf16"): 456.0,
        ("reduce_scatter", "fsdp", "fp32"): 1916.25,
        ("reduce_scatter", "tp", "bf16"): 252.0,
        ("reduce_scatter", "tp", "fp32"): 24.047,
    },
}
PLAIN = "attention.core as unfused"
SMALL_MIB = 3.0


@pytest.fixture(autouse=True)
def _without_options() -> Iterator[None]:
    with without_options():
        yield


def step(name: str) -> Sharded:
    cluster, batch, mesh, sentences = STEPS[name]
    return propagated(
        plan_of(name, mesh, *sentences, *BF16, "attention.core as unfused", model=LLAMA, batch=batch, cluster=cluster)
    )


def rows(name: str) -> tuple[Collective, ...]:
    sharded = step(name)
    return realise(sharded, semantic_collectives(sharded))


@pytest.mark.parametrize("name", COMPILED_MIB)
def test_the_rules_give_what_was_compiled(name: str) -> None:
    wire: defaultdict[tuple[str, str, str], float] = defaultdict(float)
    for row in rows(name):
        wire[row.op, row.axis, row.dtype] += row.wire_bytes / 2**20
    assert {key for key, mib in wire.items() if mib > SMALL_MIB} == COMPILED_MIB[name].keys()
    for key, seen in COMPILED_MIB[name].items():
        assert wire[key] == pytest.approx(seen, rel=2e-3), key


NARROW_BYTES = {
    ("all_gather", "fsdp", "bf16"): 2007498752,
    ("all_gather", "fsdp", "fp32"): 1051213824,
    ("all_gather", "tp", "bf16"): 33554432,
    ("all_gather", "tp", "float8"): 335544320,
    ("all_reduce", "fsdp", "bf16"): 425984,
    ("all_reduce", "fsdp+tp", "bf16"): 393216,
    ("reduce_scatter", "tp", "bf16"): 553648128,
    ("reduce_scatter", "tp", "fp32"): 33554432,
}
"""Sent by a device in a step of four layers of Llama 8B; libtpu 0.0.42.1."""


def test_narrow_matmuls_gather_one_byte_an_element_and_sum_for_each_reader() -> None:
    layout = ("fsdp 2 > tp 2", FSDP, TP, SP, *BF16, "quantize ffn, attention as float8(rowwise)")
    of = {"model": "llama3_8b(layers = 4)", "batch": "8 x 1024 tokens microbatch 2", "cluster": "tpu_v5p(2x2x1)"}
    sharded = propagated(plan_of("narrow", *layout, **of))
    wire: defaultdict[tuple[str, str, str], float] = defaultdict(float)
    for row in realise(sharded, semantic_collectives(sharded)):
        wire[row.op, row.axis, row.dtype] += row.wire_bytes
    assert {key: round(wire[key]) for key in NARROW_BYTES} == NARROW_BYTES


def test_gradients_of_keys_that_the_kernel_gathers_stay_scattered() -> None:
    """Read from two layers of Llama 8B: 8 calls and 33,554,432 bytes over cp with the kernel."""
    layout = ("fsdp 2 > cp 2", FSDP, "use cp over cp", *BF16)
    of = {"model": "llama3_8b(layers = 2)", "batch": "4 x 4096 tokens microbatch 1", "cluster": "tpu_v5p(2x2x1)"}
    found = []
    for kernel in ("splash", "unfused"):
        sharded = propagated(plan_of("keys", *layout, f"attention.core as {kernel}", **of))
        made = realise(sharded, semantic_collectives(sharded))
        found.append([r for r in made if r.axes == ("cp",) and r.tensor == "attention.v" and r.phase == "backward"])
    (summed,), (plain,) = ([r for r in made if r.op != "all_gather"] for made in found)
    assert (summed.op, summed.count, summed.wire_bytes) == ("reduce_scatter", 4, 16_777_216)
    assert plain.op == "all_reduce"


def test_one_sequence_a_rank_costs_the_scatters() -> None:
    two, one = ({r.op for r in rows(n) if r.axis == "tp" and r.dtype == "bf16"} for n in ("sp_v5p", "tp_v5p"))
    assert two == {"all_gather", "reduce_scatter"} and one == {"all_gather", "all_reduce"}


def test_a_ring_of_two_passes_its_keys_once_for_a_replay_and_its_backward() -> None:
    """Read from two layers of Llama 8B: 24 calls and 100,663,296 bytes in bf16, 8 and 67,108,864 in fp32."""
    layout = ("fsdp 2 > cp 2", FSDP, "use cp over cp as ring", *BF16)
    of = {"model": "llama3_8b(layers = 2)", "batch": "4 x 4096 tokens microbatch 1", "cluster": "tpu_v5p(2x2x1)"}
    sharded = propagated(plan_of("keys", *layout, **of))
    sent = [r for r in realise(sharded, semantic_collectives(sharded)) if r.op == "send_recv" and r.axes == ("cp",)]
    bf16, fp32 = ([r for r in sent if r.dtype == dtype] for dtype in ("bf16", "fp32"))
    assert (sum(r.count for r in bf16), sum(r.wire_bytes for r in bf16)) == (24, 100_663_296)
    assert (sum(r.count for r in fp32), sum(r.wire_bytes for r in fp32)) == (8, 67_108_864)


def test_gathers_over_a_small_torus_stay_gathers_and_copies_are_gathered_once() -> None:
    """Read from 8 layers of Llama 8B over v5p 2x2x4, parameters on the host: 226 gathers in bf16, 65 in fp32."""
    sharded = propagated(audited_plan("llama3_8b_v5p_offload_state"))
    gathered = [r for r in realise(sharded, semantic_collectives(sharded)) if r.carries == "param"]
    assert {r.op for r in gathered} == {"all_gather"}
    counts = {dtype: sum(r.count for r in gathered if r.dtype == dtype) for dtype in ("bf16", "fp32")}
    assert counts == {"bf16": 226, "fp32": 65}
    larger = propagated(audited_plan("llama3_8b_v5p_preset"))
    assert any(r.op == "all_reduce" and r.carries == "param" for r in realise(larger, semantic_collectives(larger)))


@pytest.mark.parametrize(
    ("name", "moment"),
    [
        ("llama3_8b_v5p_ring", "gradient of the head"),
        ("llama3_8b_v5p_ulysses", "gradient of the head"),
        ("llama3_8b_v6e_2_layers", "sums"),
        ("qwen3_8b_v5e_ring", "sums"),
    ],
)
def test_whole_sums_of_tables_stand_beside_each_other_in_one_microbatch(name: str, moment: str) -> None:
    """On tori of three dims that of the tokens beside the head's new gradient, on planes the head's beside both."""
    sharded = propagated(audited_plan(name))
    (found,) = peak_memory(sharded, realise(sharded, semantic_collectives(sharded)))
    assert found.moment == moment
    assert found.total == pytest.approx(results()[name]["peak_bytes"], rel=0.03)


@pytest.mark.parametrize(
    ("chip", "tokens", "microbatches", "compiled_gib"),
    [
        ("v6e", 512, 1, 1.0854),
        ("v6e", 512, 2, 1.3217),
        ("v6e", 8192, 2, 1.4314),
        ("v5e", 512, 1, 1.5411),
        ("v5e", 512, 2, 1.3236),
    ],
)
def test_on_planes_the_head_s_gradient_waits_unless_its_logits_are_few(
    chip: str, tokens: int, microbatches: int, compiled_gib: float
) -> None:
    """Few logits' gradient is kept instead, but on v5e."""
    of = {"model": "llama3_8b(layers = 2)", "cluster": f"tpu_{chip}(16x16)"}
    batch = f"{64 * microbatches} x {tokens} tokens microbatch 1"
    sharded = propagated(plan_of("plane", "fsdp 64 > tp 4", FSDP, TP, SP, *BF16, batch=batch, **of))
    (found,) = peak_memory(sharded, realise(sharded, semantic_collectives(sharded)))
    assert found.total == pytest.approx(compiled_gib * 2**30, rel=0.04)


@pytest.mark.parametrize(
    ("cluster", "stored", "compiled_gib"),
    [("tpu_v4(4x4x4)", "", 5.4408), ("tpu_v4(4x4x4)", " as bf16", 6.2372), ("tpu_v5p(4x4x4)", " as bf16", 5.1963)],
)
def test_logits_and_their_gradient_are_apart_on_v4(cluster: str, stored: str, compiled_gib: float) -> None:
    """And of tables in bf16 the head's is gathered in each microbatch, beside the tokens'."""
    sentences = ("shard batch over fsdp", f"store params, grads, optimizer{stored} over fsdp", *BF16)
    of = {"model": "llama3_8b(layers = 2)", "batch": "128 x 8192 tokens microbatch 1", "cluster": cluster}
    sharded = propagated(plan_of("loss", "fsdp 64", *sentences, **of))
    (found,) = peak_memory(sharded, realise(sharded, semantic_collectives(sharded)))
    assert found.total == pytest.approx(compiled_gib * 2**30, rel=0.015)
    assert found.moment == ("loss" if "v4" in cluster else "gradient of the head")


def test_gradients_over_the_whole_machine_are_summed_whole() -> None:
    grads = [r for r in rows("whole_v5p") if r.carries == "grad"]
    assert {r.op for r in grads} == {"all_reduce"}
    assert all("all_reduce_whole_torus" in r.realised_by for r in grads)


@pytest.mark.parametrize(
    ("name", "axis", "whole"),
    [
        ("llama3_70b_v5p_4096", "fsdp", {"tok_embeddings", "w1", "w2", "w3", "output"}),
        ("llama3_8b_v6e_256", "fsdp", {"tok_embeddings", "output"}),
        ("llama3_8b_v5e_256", "fsdp", {"tok_embeddings", "output"}),
        ("llama3_70b_v5p_256", "fsdp", set()),
        ("llama3_8b_v5p_128_hsdp", "replica+fsdp", {"tok_embeddings"}),
        ("llama3_8b_7x_64_hsdp", "replica+fsdp", {"tok_embeddings", "attention_norm", "ffn_norm", "norm"}),
        ("qwen3_8b_v6e_offload_hidden", "fsdp", {"tok_embeddings", "output"}),
    ],
)
def test_gradients_that_the_compiler_summed_whole(name: str, axis: str, whole: set[str]) -> None:
    """Read from the optimized HLO of these plans; their other gradients of matrices are scattered."""
    sharded = propagated(audited_plan(name))
    grads = [r for r in realise(sharded, semantic_collectives(sharded)) if r.carries == "grad" and r.axis == axis]
    assert {r.tensor.removesuffix(".weight").split(".")[-1] for r in grads if r.op == "all_reduce"} == whole


@pytest.mark.parametrize(
    ("chip", "rows_all", "columns", "ranks", "padded_all"),
    [
        ("v6e", 4096, 4096, 32, 4608),
        ("v6e", 11008, 4096, 32, 12288),
        ("v6e", 32000, 4096, 32, 32256),
        ("v6e", 8192, 4096, 32, 9216),
        ("v6e", 8192, 3584, 32, 8960),
        ("v6e", 15616, 4096, 32, 16896),
        ("v6e", 31232, 4096, 64, 32256),
        ("v6e", 1024, 4096, 32, 1024),
        ("v6e", 4096, 1024, 32, 4096),
        ("v5p", 4096, 2752, 16, 4096),
        ("v4", 4096, 3584, 16, 4608),
        ("v4", 14336, 1024, 16, 14592),
        ("v4", 4096, 1024, 16, 4096),
    ],
)
def test_padding_of_sums_that_were_compiled(
    chip: str, rows_all: int, columns: int, ranks: int, padded_all: int
) -> None:
    buffers = rows_all * columns * 4 / 2**20 / BUFFER_MIB[chip]
    assert ranks * padded_rows(rows_all // ranks, buffers) == padded_all


def test_shifts_after_padding() -> None:
    """v6e, 128 rows a rank padded to 144: permutes of 144, 144, 144 and 64 rows, to the next ranks on."""
    sent = 144 * (31 + 30 + 29) / 32 + 64 * 28 / 32
    assert shifted_rows(128, 144, 32) == pytest.approx(sent)
    assert shifted_rows(128, 128, 32) == 0


@pytest.mark.parametrize(
    ("chip", "ranks", "tiles", "scattered"),
    [
        *(("v5p", 2, 37, True), ("v5p", 2, 41, False), ("v5p", 4, 53, True), ("v5p", 4, 59, False)),
        *(("v5p", 8, 73, True), ("v5p", 8, 79, False), ("v5p", 16, 89, True), ("v5p", 16, 97, False)),
        *(("v5p", 32, 97, True), ("v5p", 32, 101, False), ("v4", 8, 73, True), ("v4", 8, 79, False)),
        *(("v5e", 8, 73, True), ("v5e", 8, 79, False), ("tpu7x", 8, 127, True), ("tpu7x", 8, 131, False)),
        *(("v6e", 2, 73, True), ("v6e", 2, 79, False), ("v6e", 4, 113, True), ("v6e", 4, 127, False)),
        *(("v6e", 8, 151, True), ("v6e", 8, 157, False), ("v6e", 16, 181, True), ("v6e", 16, 191, False)),
        *(("v6e", 32, 199, True), ("v6e", 32, 211, False)),
        *(("v6e", 8, 4 * 1187, False), ("v6e", 8, 24 * 167, True), ("v5p", 8, 4 * 1187, False)),
        *(("v6e", 8, 5 * 239, False), ("v6e", 8, 31 * 37, True), ("v6e", 8, 17 * 17, False), ("v6e", 8, 13 * 19, True)),
        *(("v6e", 8, 19 * 211, False), ("v6e", 8, 20 * 211, True), ("v6e", 8, 17 * 19, True)),
        *(("v5p", 8, 9 * 211, False), ("v5p", 8, 10 * 211, True), ("v5p", 32, 11 * 211, False)),
        *(("tpu7x", 8, 19 * 211, False), ("tpu7x", 8, 24 * 167, True), ("tpu7x", 8, 2 * 1187, False)),
    ],
)
def test_sums_along_columns_fall_into_equal_slices(chip: str, ranks: int, tiles: int, scattered: bool) -> None:
    """Single sums of so many tiles of 8 rows and 4,096 columns a rank, as compiled."""
    assert fits_in_slices(chip, ranks, 8 * tiles, 8 * tiles * 4096 * 4 / 2**20) == scattered


def test_a_vocabulary_without_equal_slices_is_summed_whole() -> None:
    """As compiled for the second trial of strangers: qwen3_8b over v6e 4x8, 30.03 GB over fsdp."""
    layout = ("fsdp 8 > tp 4", FSDP, TP, SP, *BF16, PLAIN)
    of = {"model": "qwen3_8b", "batch": "32 x 4096 tokens microbatch 2", "cluster": "tpu_v6e(4x8)"}
    sharded = propagated(plan_of("vocabulary", *layout, **of))
    sent = [r for r in realise(sharded, semantic_collectives(sharded)) if r.axes == ("fsdp",)]
    assert sum(r.wire_bytes for r in sent) == pytest.approx(30.03e9, rel=1e-3)
    whole = {r.tensor for r in sent if "all_reduce_uneven_slices" in r.realised_by}
    assert whole == {"tok_embeddings.weight", "output.weight"}


@pytest.mark.parametrize("pipeline", [False, True])
def test_gradients_with_copies_on_7x(pipeline: bool) -> None:
    """The program scatters them before copies are summed, but not in a pipeline, where the compiler sums them whole."""
    mesh, *more = ("pp 2 > replica 2 > fsdp 4", "use pp over pp as 1f1b") if pipeline else ("replica 2 > fsdp 8",)
    layout = (mesh, "use hsdp over replica, fsdp", *more, *BF16)
    sharded = propagated(plan_of("copies", *layout, model=SLICES_MODEL, batch=SLICES_BATCH, cluster="tpu_7x(2x2x2)"))
    grads = [r for r in realise(sharded, semantic_collectives(sharded)) if r.tensor.endswith("w1.weight")]
    grads = [r for r in grads if r.carries == "grad"]
    found = {(r.op, r.axis) for r in grads}
    assert found == (
        {("all_reduce", "replica+fsdp")} if pipeline else {("reduce_scatter", "fsdp"), ("all_reduce", "replica")}
    )


def test_tables_that_are_stored_in_bf16_are_gathered_in_it() -> None:
    """Over all of a torus: as compiled for v4, all stored in bf16; and a head that the program rounds first."""
    found = {}
    for name in ("llama3_8b_v4_state_bf16", "llama3_8b_v5p_every_2_layers", "llama3_8b_v5p_2_layers"):
        sharded = propagated(audited_plan(name))
        rows = realise(sharded, semantic_collectives(sharded))
        found[name] = [r.dtype for t in ("tok_embeddings.weight", "output.weight") for r in rows if _gathers(r, t)]
    assert list(found.values()) == [["bf16", "bf16"], ["fp32", "bf16"], ["fp32", "fp32"]]


def _gathers(row: Collective, tensor: str) -> bool:
    return row.carries == "param" and row.tensor == tensor


PEAKS_OF_SEVERAL_MICROBATCHES = {
    # name: the compiler's bytes; gradients of a microbatch stand beside the sum of those before it
    "fsdp_v6e": 5_608_824_480,
    "llama3_8b_v5p_64": 7_493_634_720,
    "llama3_8b_v5e_64": 4_147_130_880,
    "llama3_70b_v5p_256": 17_653_238_432,
}


@pytest.mark.parametrize(("name", "compiled_bytes"), PEAKS_OF_SEVERAL_MICROBATCHES.items())
def test_the_fullest_moment_of_plain_attention_in_several_microbatches(name: str, compiled_bytes: int) -> None:
    sharded = step(name) if name in STEPS else propagated(audited_plan(name))
    (found,) = peak_memory(sharded, realise(sharded, semantic_collectives(sharded)))
    assert found.moment == "backward of block"
    assert found.total == pytest.approx(compiled_bytes, rel=0.025)


LATER_CLUSTERS = {
    # name: (model, cluster, batch, mesh, sentences, GiB that the compiler says)
    "ring_v5p": (
        *("llama3_8b", "tpu_v5p(4x4x4)", "16 x 16384 tokens microbatch 1", "fsdp 16 > cp 4"),
        ("shard batch over fsdp", "store params, grads, optimizer over fsdp, cp", "use cp over cp as ring", PLAIN),
        7.70,
    ),
}
"""Plans that were compiled outside the audit's table."""


def later(name: str) -> tuple[Sharded, float]:
    model, cluster, batch, mesh, sentences, gib = LATER_CLUSTERS[name]
    plan = plan_of(name, mesh, *sentences, *BF16, model=model, batch=batch, cluster=cluster)
    return propagated(plan), gib * 2**30


@pytest.mark.parametrize("name", LATER_CLUSTERS)
def test_peaks_of_plans_outside_the_table(name: str) -> None:
    """A ring holds the scores of its own keys alone."""
    sharded, seen_bytes = later(name)
    (found,) = peak_memory(sharded, realise(sharded, semantic_collectives(sharded)))
    assert found.total == pytest.approx(seen_bytes, rel=0.06)


def test_gradients_travel_a_ring_as_they_are_summed() -> None:
    """Read from the compiled step: 192 sends in fp32 and the last 64 in bf16, 8.59 GB over cp with the keys' own."""
    sharded, _ = later("ring_v5p")
    sends = [r for r in realise(sharded, semantic_collectives(sharded)) if r.op == "send_recv" and r.axis == "cp"]
    grads = [r for r in sends if r.tensor.endswith("gradient")]
    assert {d: sum(r.count for r in grads if r.dtype == d) for d in ("fp32", "bf16")} == {"fp32": 192, "bf16": 64}
    assert sum(r.wire_bytes for r in sends) == pytest.approx(8.59e9, rel=1e-3)


def test_peaks_of_experts_without_a_capacity_hold_all_rows_that_may_come() -> None:
    """Two layers of Mixtral, fsdp 16 > ep 8 on v5p: 32,768 places for 8,192 rows; the compiler says 5,705,050,816
    bytes."""
    sharded = propagated(tpu_plan("mixtral_8x7b_v5p_dropless"))
    (found,) = peak_memory(sharded, realise(sharded, semantic_collectives(sharded)))
    assert found.total == pytest.approx(5_705_050_816, rel=0.06)


TWO_SLICES, SLICES_BATCH = "2 x tpu_v5p(2x2x2)", "16 x 256 tokens microbatch 1"
SLICES = ("replica 2 > fsdp 4 > tp 2", "use hsdp over replica, fsdp", TP, SP, *BF16)
SLICES_MODEL = "llama_micro(layers = 2, embed = 1024, ffn = 4096, vocab = 8192)"


def test_sums_are_made_within_slices_first() -> None:
    """As compiled for two slices: what crosses them is divided over the ranks of one, but for what rests whole."""
    sharded = propagated(plan_of("slices", *SLICES, model=SLICES_MODEL, batch=SLICES_BATCH, cluster=TWO_SLICES))
    sent: dict[tuple[str, ...], float] = defaultdict(float)
    for row in realise(sharded, semantic_collectives(sharded)):
        sent[row.axes] += row.wire_bytes / 2**20
    assert sent["fsdp",] == pytest.approx(224.303, rel=0.002)  # of which 24 MiB are the table's gradient
    assert sent["replica",] == pytest.approx(36.415, rel=0.002)
    assert not any("replica" in axes for axes in sent if len(axes) > 1)


def test_gradients_divided_over_a_whole_slice_are_summed_whole_in_it() -> None:
    """As over all of one torus: twice the wire within a slice, and no more across."""
    mesh, sentences = "replica 2 > fsdp 8", ("use hsdp over replica, fsdp", *BF16)
    of = propagated(plan_of("slices", mesh, *sentences, model=SLICES_MODEL, batch=SLICES_BATCH, cluster=TWO_SLICES))
    sent: dict[tuple[str, ...], float] = defaultdict(float)
    for row in realise(of, semantic_collectives(of)):
        sent[row.axes] += row.wire_bytes / 2**20
    assert sent == pytest.approx({("fsdp",): 396.0, ("replica",): 20.211}, rel=0.002)


def test_sums_of_one_slice_stay_as_they_are() -> None:
    sentences = (FSDP, TP, SP, *BF16)
    one = propagated(plan_of("one", "fsdp 8 > tp 2", *sentences, model=SLICES_MODEL, cluster="tpu_v5p(2x2x4)"))
    found = realise(one, semantic_collectives(one))
    assert found and not any("sum_within_slices_first" in row.realised_by for row in found)


def test_saved_keys_are_gathered_again_on_tpus_alone() -> None:
    """Four layers and four microbatches, attention alone recomputed: 64 gathers on v5p, 32 on CPU devices."""
    for cluster, calls in (("tpu_v5p(2x2x1)", 64), ("4 x cpu_local", 32)):
        sentences = ("use fsdp over dp", "use cp over cp as all_gather", "compute bf16", "recompute attention.core")
        batch = "16 x 2048 tokens microbatch 2"
        of = propagated(plan_of("kept", "dp 2 > cp 2", *sentences, model=LLAMA, batch=batch, cluster=cluster))
        found = realise(of, semantic_collectives(of))
        assert sum(r.count for r in found if (r.op, r.axis, r.carries) == ("all_gather", "cp", "activation")) == calls
