"""Time of one op: shapes of matmuls, kernels of attention, the host, transfers beside compute."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planc.costing.compute.attention import attention_efficiency, attention_s
from planc.costing.compute.flops import op_bytes, op_flops
from planc.costing.compute.gemm import fused_of, gemm_of, gemm_s, products_s
from planc.costing.compute.section import dispatched_s, host_s, launches_s, op_s, section_time
from planc.costing.compute.shapes import Gemm
from planc.costing.machine.rates import memory_bytes_per_s
from planc.costing.step.step_products import step_flops
from planc.driver import examine
from planc.ir.hardware import Chip
from planc.ir.sharding import OpSharding, Sharded
from tests.plans import HEAD_BF16 as HEAD
from tests.plans import cluster_of, plan_of, propagated

DATA = HEAD.replace("mesh      fsdp 8 > tp 8", "mesh      fsdp 64") + "use fsdp over fsdp\n"


def sharded_of(folder: Path, text: str, **chip: Any) -> Sharded:
    plan = plan_of(folder, text)
    changed = replace(plan.cluster.chip, **chip)
    return propagated(replace(plan, cluster=replace(plan.cluster, chip=changed)))


def op_of(sharded: Sharded, name: str) -> OpSharding:
    return sharded.op[name]


@pytest.fixture
def h100() -> Chip:
    return cluster_of("1 x h100_node").chip


def test_a_product_has_the_shape_of_its_shards(tmp_path: Path) -> None:
    text = HEAD + "use fsdp over fsdp\nuse tp over tp\n"
    gemm = gemm_of(sharded_of(tmp_path, text), op_of(sharded_of(tmp_path, text), "ffn.gate"))
    assert gemm == Gemm(m=8192, n=14336 / 8, k=4096)


def test_experts_are_several_products(tmp_path: Path) -> None:
    sharded = sharded_of(tmp_path, DATA.replace("llama3_8b", "mixtral_8x7b"))
    gemm = gemm_of(sharded, op_of(sharded, "moe.gate"))
    assert (gemm.groups, gemm.n, gemm.k) == (8, 14336, 4096) and gemm.m == 8192 * 2 / 8


def test_a_step_multiplies_what_it_runs_again(tmp_path: Path) -> None:
    """Three times the forward, whose attention is a kernel; again all but the last matmul of recomputed blocks."""
    plain, again = (step_flops(sharded_of(tmp_path, DATA + more), 0) for more in ("", "recompute blocks\n"))
    sharded = sharded_of(tmp_path, DATA)
    forward = {o.op.name: op_flops(sharded, o) for o in sharded.ops["block"] if o.op.kind == "matmul"}
    layers = sharded.plan.microbatches * sharded.model.layers
    head = sum(op_flops(sharded, o) for o in sharded.ops["last"] if o.op.kind == "matmul") * sharded.plan.microbatches
    assert plain == 3 * (layers * sum(forward.values()) + head)
    assert again == plain + layers * (sum(forward.values()) - forward["ffn.down"])


def test_small_products_are_less_efficient(h100: Chip) -> None:
    """Per FLOP, a short contraction and few tiles cost more; a large square comes near the efficiency."""

    def each(m: int, n: int, k: int) -> float:
        gemm = Gemm(m, n, k)
        return (gemm_s(gemm, h100, 1e-15, 2) - h100.launch_s) / gemm.flops

    assert each(8192, 8192, 256) > each(8192, 8192, 8192) and each(512, 512, 8192) > each(8192, 8192, 8192)
    assert each(65536, 65536, 65536) == pytest.approx(1e-15, rel=0.02)


def test_kernels_of_attention(tmp_path: Path) -> None:
    """cuDNN's is faster and Triton's slower than the plain one; unfused moves every score."""

    def seconds(sentence: str) -> float:
        sharded = sharded_of(tmp_path, DATA + sentence)
        return attention_s(sharded, op_of(sharded, "attention.core"), sharded.plan.cluster.chip, backward=False)

    plain, words = seconds(""), "attention.core as {}\n"
    assert seconds(words.format("cudnn")) < plain == seconds(words.format("flash")) < seconds(words.format("triton"))
    moved = 9 * 32 * 8192 * 8192 / (0.95 * 3350e9)
    assert seconds(words.format("unfused")) > moved > plain


def test_unfused_attention_of_heads_of_odd_width_has_no_tensor_cores(tmp_path: Path) -> None:
    """Heads of 150 and of 108 elements are no rows of whole 16 bytes, those of 144 are; a fused kernel pads them."""

    def seconds(width: int, kernel: str) -> float:
        text = f"{DATA.replace('llama3_8b', f'llama3_8b(head_dim = {width})')}attention.core as {kernel}\n"
        sharded = sharded_of(tmp_path, text)
        return attention_s(sharded, op_of(sharded, "attention.core"), sharded.plan.cluster.chip, backward=True)

    assert seconds(150, "unfused") > 3 * seconds(144, "unfused") and seconds(108, "unfused") > seconds(144, "unfused")
    assert seconds(150, "flash") < 1.1 * seconds(144, "flash")


def test_matmuls_run_at_the_speed_of_their_library(tmp_path: Path) -> None:
    """A framework's library divides the seconds of matmuls by its speed on the chip, in any dtype, and no others'."""

    def seconds(framework: str, name: str) -> float:
        text = f"{DATA}quantize ffn.down as float8\nrealise as {framework}\n"
        sharded = sharded_of(tmp_path, text, te_speed=1.1, xla_speed=1.2, torch_2_1_speed=0.8, launch_s=0.0)
        return sum(products_s(sharded, op_of(sharded, name), sharded.plan.cluster.chip, backward=True))

    for name in ("ffn.gate", "ffn.down"):
        torch = seconds("torchtitan", name)
        assert seconds("bridge", name) == pytest.approx(torch / 1.1), name
        assert seconds("maxtext", name) == pytest.approx(torch / 1.2), name
        assert seconds("llm_foundry", name) == pytest.approx(torch / 0.8), name
        assert seconds("planc", name) == torch, name


def test_narrow_heads_are_slower(tmp_path: Path) -> None:
    wide, narrow = (sharded_of(tmp_path, DATA.replace("llama3_8b", f"llama3_8b(head_dim = {d})")) for d in (128, 64))
    chip = wide.plan.cluster.chip
    assert attention_efficiency(wide, op_of(wide, "attention.core"), chip) == pytest.approx(chip.attention_efficiency)
    assert attention_efficiency(narrow, op_of(narrow, "attention.core"), chip) < 0.9 * chip.attention_efficiency


def test_products_of_one_input_are_one_product(tmp_path: Path) -> None:
    """Query, key and value side by side; each takes its share of the columns. Another input is another product."""
    sharded = sharded_of(tmp_path, DATA)
    parts = [fused_of(sharded, op_of(sharded, f"attention.{name}")) for name in ("q", "k", "v")]
    assert {gemm for gemm, _ in parts} == {Gemm(m=8192, n=4096 + 2 * 1024, k=4096)}
    assert [share for _, share in parts] == pytest.approx([2 / 3, 1 / 6, 1 / 6])
    assert fused_of(sharded, op_of(sharded, "attention.out")) == (Gemm(m=8192, n=4096, k=4096), 1.0)


def test_a_router_is_a_product_of_its_own(tmp_path: Path) -> None:
    """It takes the same input as a shared expert, in another module."""
    sharded = sharded_of(tmp_path, DATA.replace("llama3_8b", "llama4_scout"))
    gemm, share = fused_of(sharded, op_of(sharded, "moe.router"))
    assert (gemm.n, share) == (16, 1.0)


def test_tokens_are_laid_out_twice(tmp_path: Path) -> None:
    """The copies for the experts are written, read and written again."""
    sharded = sharded_of(tmp_path, DATA.replace("llama3_8b", "mixtral_8x7b"))
    tokens, scores = 8192 * 4096 * 2, 8192 * 8 * 4
    assert op_bytes(sharded, op_of(sharded, "moe.route")) == pytest.approx(tokens + scores + 3 * 2 * tokens, rel=1e-3)


def test_biases_of_experts_take_passes_of_their_own(tmp_path: Path) -> None:
    """A single product adds its bias as it writes; several products do not."""
    sharded = sharded_of(tmp_path, DATA.replace("llama3_8b", "gpt_oss_20b"))
    chip = sharded.plan.cluster.chip
    gate, query = (op_of(sharded, name) for name in ("moe.gate", "attention.q"))
    gemm = gemm_of(sharded, gate)
    alone = sum(products_s(sharded, gate, chip, False))
    passes = 4 * gemm.groups * gemm.m * gemm.n * 2 / memory_bytes_per_s(chip) + chip.launch_s
    assert op_s(sharded, gate, chip) - alone == pytest.approx(passes, rel=0.01)
    assert op_s(sharded, query, chip) == sum(products_s(sharded, query, chip, False))


def test_megatron_clamps_the_inputs_of_a_biased_gate_first(tmp_path: Path) -> None:
    """Its fused gate takes no limit: 16 bytes more an element forward and 20 backward, where experts have biases."""
    text = DATA.replace("llama3_8b", "gpt_oss_20b")
    own, other = sharded_of(tmp_path, text), sharded_of(tmp_path, text + "realise as megatron\n")
    chip, gate = own.plan.cluster.chip, op_of(own, "moe.swiglu")
    made = op_bytes(own, gate) / 3 / 2
    for backward, each in ((False, 16), (True, 20)):
        plain, clamped = (op_s(s, op_of(s, "moe.swiglu"), chip, backward=backward) for s in (own, other))
        assert clamped - plain == pytest.approx(each * made / memory_bytes_per_s(chip))


def test_the_host_launches_more_for_routing_and_for_float8(tmp_path: Path) -> None:
    """In Megatron a layer with experts has many small ops for routing, and a float8 module takes twice a wide one's
    launches; Bridge launches all but the experts as graphs on Blackwell. A product of experts
    takes 69 us, and 25 for each of them."""
    text = DATA.replace("llama3_8b", "mixtral_8x7b")
    dispatch_s = 1.0

    def asked(words: str, plan: str = text) -> float:
        sharded = sharded_of(tmp_path, plan + words, dispatch_s=dispatch_s)
        return launches_s(sharded, "block", sharded.plan.cluster.chip)

    ops = len(sharded_of(tmp_path, text).ops["block"])
    products_s = 2 * (69e-6 + 8 * 25e-6)
    assert asked("") == ops
    assert asked("realise as megatron\n") == pytest.approx(ops + 7 + 1 + products_s)
    narrow = "quantize attention.q, attention.k, moe.down as float8\n"
    assert asked("realise as megatron\n" + narrow) == pytest.approx(ops + 7 + 1 + 3 + products_s)
    on_b200 = text.replace("h100", "b200") + "realise as bridge\n"
    assert asked("", on_b200) == pytest.approx(4 + products_s)
    assert asked(narrow, on_b200) == pytest.approx(5 + products_s)


def test_ops_of_one_name_in_two_kinds_of_block_are_two(tmp_path: Path) -> None:
    """Attention that slides is faster than attention that does not."""
    sharded = sharded_of(tmp_path, DATA.replace("llama3_8b", "gpt_oss_20b"))
    chip = sharded.plan.cluster.chip
    slides, sees_all = (section_time(sharded, kind, chip).forward_s for kind in ("sliding", "block"))
    assert slides < sees_all


def test_quantized_matmuls_cast_their_inputs(tmp_path: Path) -> None:
    """At the same rate a float8 matmul is slower: its inputs are read twice more and written twice. One gate's cast
    of the input is half of what it shares with the other."""
    same = {"narrow_efficiency": {"float8": 0.4}, "matmul_efficiency": 0.8}
    wide = sharded_of(tmp_path, DATA, **same)
    narrow = sharded_of(tmp_path, DATA + "quantize ffn as float8\n", **same)
    chip = wide.plan.cluster.chip
    gap = op_s(narrow, op_of(narrow, "ffn.gate"), chip) - op_s(wide, op_of(wide, "ffn.gate"), chip)
    cast = (8192 * 4096 / 2 + 4096 * 14336) * 6 / (chip.memory_bandwidth_bytes_per_s * chip.memory_efficiency)
    assert gap == pytest.approx(cast, rel=0.05)
    tiled = sharded_of(tmp_path, DATA + "quantize ffn as float8(tile = 32)\n", **same)
    less = op_s(narrow, op_of(narrow, "ffn.gate"), chip) - op_s(tiled, op_of(tiled, "ffn.gate"), chip)
    assert less == pytest.approx(cast / 3, rel=0.05)


def test_a_framework_finds_largest_values_where_it_writes_them(tmp_path: Path) -> None:
    """Behind a norm Megatron's casts read once; Blackwell's products take one copy. Other inputs are read twice, and a
    tiled scale needs no reading of the whole."""
    same = {"narrow_efficiency": {"float8": 0.4}, "matmul_efficiency": 0.8, "launch_s": 0.0}

    def saved(name: str, machine: str = "h100_node", recipe: str = "") -> float:
        text = f"{DATA.replace('h100_node', machine)}quantize ffn, attention as float8{recipe}\n"
        both = [sharded_of(tmp_path, text + words, **same) for words in ("", "realise as megatron\n")]
        chip = both[0].plan.cluster.chip
        plain, fused = (op_s(one, op_of(one, name), chip) for one in both)
        return (plain - fused) * memory_bytes_per_s(chip)

    tokens, embed, ffn = 8192, 4096, 14336
    assert saved("ffn.gate") == pytest.approx(tokens * embed / 2 * 2, rel=1e-6)
    assert saved("attention.out") == 0 == saved("ffn.down") == saved("ffn.gate", recipe="(tile = 32)")
    assert saved("ffn.down", "b200_node") == pytest.approx(tokens * ffn + ffn * embed, rel=1e-6)


def test_the_device_waits_for_numbers_of_tokens(tmp_path: Path) -> None:
    """Two ops' launches in Megatron, whose exchange and whose products take them from the host; one in planc's own
    programs, whose products do not; none where room is given, where another microbatch runs, or on TPUs."""
    text = DATA.replace("llama3_8b", "qwen3_30b_a3b") + "shard experts over fsdp\n"

    def waits(words: str, machine: str = "8 x h100_node") -> float:
        sharded = sharded_of(tmp_path, text.replace("8 x h100_node", machine) + words, dispatch_s=1.0)
        return round(op_s(sharded, op_of(sharded, "moe.route"), sharded.plan.cluster.chip), 1)

    assert waits("realise as megatron\n") == 2.0 and waits("") == 1.0
    assert waits("route experts as capacity(factor = 1.0)\nrealise as megatron\n") == 0.0
    assert waits("overlap fsdp as dual_batch\nrealise as megatron\n") == 0.0
    assert waits("", "tpu_v5p(4x4x4)") == 0.0


def test_experts_run_as_their_framework_runs_them(tmp_path: Path) -> None:
    """Tiles of four experts at a time in Megatron, so that a last wave costs more; on TPUs MaxText's kernel computes a
    tile at each boundary twice, if it drops no token."""
    text = DATA.replace("llama3_8b", "qwen3_30b_a3b") + "route experts as dropless\n"

    def seconds(words: str) -> float:
        sharded = sharded_of(tmp_path, text + words, matmul_tail=0.4)
        return products_s(sharded, op_of(sharded, "moe.down"), sharded.plan.cluster.chip, False)[0]

    plain = seconds("")
    assert seconds("realise as maxtext\n") == plain == seconds("realise as torchtitan\n")
    tiles = 4 * 2048 // 256 * 4  # of 8192 x 8 / 128 = 512 rows in tiles of 128
    more = (1 + 0.4 * 132 / tiles) / (1 + 0.4 * 132 / (32 * tiles))
    assert seconds("realise as megatron\noverlap fsdp as dual_batch\n") / plain == pytest.approx(more, rel=0.01)
    assert seconds("realise as megatron\n") == 69e-6 + 128 * 25e-6  # the host starts each expert's product

    torus = text.replace("8 x h100_node", "tpu_v5p(4x4x4)").replace("microbatch 1", "microbatch 2")
    rows = [
        products_s(one, op_of(one, "moe.down"), one.plan.cluster.chip, False)[0] - one.plan.cluster.chip.launch_s
        for one in (
            sharded_of(tmp_path, torus.replace("batch     64", "batch     128") + words)
            for words in ("", "realise as maxtext\n")
        )
    ]
    assert rows[1] / rows[0] == pytest.approx((1024 + 512 * 127 / 128) / 1024, rel=0.01)


def test_the_weighted_bias_of_an_expert_is_added_in_fp32(tmp_path: Path) -> None:
    """Megatron: the first bias is the product's own; the last costs 28 bytes an element, and 40 in the backward."""
    text = DATA.replace("llama3_8b", "gpt_oss_20b") + "route experts as dropless\nrealise as megatron\n"
    sharded = sharded_of(tmp_path, text)
    chip, elements = sharded.plan.cluster.chip, 8192 * 4 * 2880
    for backward, each in ((False, 28), (True, 40)):
        first, last = (
            op_s(sharded, op_of(sharded, name), chip, backward=backward)
            - sum(products_s(sharded, op_of(sharded, name), chip, backward))
            for name in ("moe.gate", "moe.down")
        )
        assert first == 0
        assert last - chip.launch_s == pytest.approx(each * elements / memory_bytes_per_s(chip))


def test_weights_that_stay_are_cast_once_a_step(tmp_path: Path) -> None:
    """With 64 sequences of 64 ranks in microbatches of one there is one cast a step; with four times as many, each
    microbatch has a quarter of it, unless weights are gathered each time."""
    head = HEAD.replace("mesh      fsdp 8 > tp 8", "mesh      dp 64") + "quantize ffn as float8\n"
    gathered = DATA + "quantize ffn as float8\n"

    def seconds(text: str, sequences: int) -> float:
        sharded = sharded_of(tmp_path, text.replace("batch     64", f"batch     {sequences}"))
        return op_s(sharded, op_of(sharded, "ffn.gate"), sharded.plan.cluster.chip)

    plain = head + "use ddp over dp\n"
    assert seconds(plain, 256) < seconds(plain, 64)
    assert seconds(gathered, 256) == seconds(gathered, 64)


def test_kernels_wait_for_the_host(tmp_path: Path) -> None:
    """A section takes the host's time for its ops when that is more; what waits is told apart."""
    slow = sharded_of(tmp_path, DATA, dispatch_s=1.0)
    chip = slow.plan.cluster.chip
    ops = slow.ops["block"]
    assert section_time(slow, "block", chip).forward_s == len(ops)
    wait, _ = host_s(slow, "block", chip)
    busy = sum(op_s(slow, o, chip) + op_s(slow, o, chip, backward=True) for o in ops)
    assert wait + busy == pytest.approx(2 * len(ops))
    assert host_s(slow, "block", replace(chip, dispatch_s=0.0)) == (0.0, 0.0)


def test_overlap_as_none_hides_nothing(tmp_path: Path) -> None:
    costed = examine(plan_of(tmp_path, DATA + "overlap fsdp as none\n")).costed
    hidden = examine(plan_of(tmp_path, DATA)).costed
    assert costed is not None and hidden is not None
    rows = [r for r in costed.collectives if r.row.axes == ("fsdp",)]
    assert rows and all(r.exposed_s == r.time_s for r in rows)
    assert costed.step.time_s > hidden.step.time_s


def test_a_call_costs_the_host_whatever_hides(tmp_path: Path) -> None:
    """A network's `call` is exposed for every call, beside what of the transfer itself is."""
    plan = plan_of(tmp_path, DATA)
    times = []
    for call_s in (0.0, 1e-3):
        link = replace(plan.cluster.link, call_s=call_s)
        levels = tuple(replace(v, call_s=call_s) for v in plan.cluster.levels)
        costed = examine(replace(plan, cluster=replace(plan.cluster, link=link, levels=levels))).costed
        assert costed is not None
        times.append(costed.step.exposed_comm_s)
        calls = sum(r.row.count for r in costed.collectives)
    assert calls > 10 and times[1] - times[0] == pytest.approx(1e-3 * calls)


def test_a_process_asks_for_its_ops_itself(tmp_path: Path) -> None:
    """Where no cores are counted the host's time and the kernels' add up; elsewhere the longer one counts."""
    chip = cluster_of("4 x cpu_local").chip
    assert dispatched_s([3e-3, 1e-3], 2e-3, chip) == pytest.approx(6e-3)
    assert dispatched_s([3e-3, 1e-3], 2e-3, replace(chip, cores=8)) == pytest.approx(4e-3)
    assert dispatched_s([3e-3, 1e-3], 18e-3, replace(chip, cores=8)) == pytest.approx(18e-3)


def test_what_hides_slows_compute_down(tmp_path: Path) -> None:
    """The share `contention` of a hidden transfer is exposed."""
    plan = plan_of(tmp_path, DATA)
    times = []
    for share in (0.0, 0.5):
        chip = replace(plan.cluster.chip, contention=share)
        costed = examine(replace(plan, cluster=replace(plan.cluster, chip=chip))).costed
        assert costed is not None
        times.append(costed.step.exposed_comm_s)
        total = sum(r.time_s for r in costed.collectives)
    assert times[1] - times[0] == pytest.approx(0.5 * (total - times[0]), rel=1e-6)


def test_sums_of_gradients_hide_behind_the_weights_products(tmp_path: Path) -> None:
    """`weight_gradients`: in the backward alone, and gathers wait as before."""
    text = HEAD + "use fsdp over fsdp\nuse tp over tp\nuse sp over tp\n"
    waits = examine(plan_of(tmp_path, text), target="none").costed
    beside = examine(plan_of(tmp_path, text + "overlap tp as weight_gradients\n"), target="none").costed
    assert waits is not None and beside is not None
    contention = waits.sharded.plan.cluster.chip.contention
    hidden = 0
    for one, other in zip(waits.timed.collectives, beside.timed.collectives, strict=True):
        if one.row.carries != "activation" or "tp" not in one.row.axes or one.row.section != "block":
            continue
        sums = one.row.phase == "backward" and one.row.op == "reduce_scatter"
        hidden += sums
        assert other.exposed_s == pytest.approx(one.exposed_s * (contention if sums else 1.0))
    assert hidden
