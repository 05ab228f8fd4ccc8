"""Laws of physics and of views on some drawn plans; `tests/random_plans/run.py --physics` is the campaign."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.cli import COMMANDS
from planc.driver import examine, search
from planc.ir.target import NO_TARGET
from planc.report.data import PageSubject
from planc.report.views.roofline import roofline
from tests.launches import sampled
from tests.plans import ROOT
from tests.random_plans import extremes, physics
from tests.random_plans.pieces import Drawn
from tests.random_plans.promises import write
from tests.random_plans.run import drawn_of

FROZEN = (120, 1560, 1673, 1708)
"""Seeds of plans that freeze weights."""


@pytest.mark.parametrize("seed", [*range(8), *FROZEN])
def test_no_op_beats_the_machine_and_stored_state_is_less(seed: int, tmp_path: Path) -> None:
    costed = examine(write(drawn_of(seed), tmp_path), targets=()).costed
    assert costed is not None
    assert [*physics.floors(costed), *physics.less_state(costed)] == []


CASES = {
    "state once a step": (
        "model llama3_70b(layers = 4)\nbatch 64 x 64 tokens microbatch 4\ncluster 16 x h100_node\n"
        "mesh pp 4 > dp 4 > cp 8\nuse zero2 over dp\nuse cp over cp\nsplit layers over pp as gpipe\ncompute bf16"
    ),
    "a host that launches a split backward": (
        "model llama3_8b(layers = 12)\nbatch 3 x 512 tokens\ncluster 3 x b200_node(4)\nmesh stage 3 > tp 4\n"
        "use tp over tp\nsplit layers over stage as interleaved_zero_bubble(chunks = 1)\ncompute bf16"
    ),
    "a ring and gathers beside the same compute": (
        "model llama_micro(layers = 4)\nbatch 8 x 32 tokens\ncluster 4 x cpu_local\nmesh cp 2 > data 2\n"
        "use fsdp over data\nuse cp over cp as ring\ncompute fp32"
    ),
    "stages of a rank with more and less to do": (
        "model mistral_micro(heads = 4, layers = 4)\nbatch 32 x 40 tokens microbatch 4\ncluster 8 x cpu_local\n"
        "mesh stage 2 > tensor 2 > fsdp 2\nuse tp over tensor\nuse fsdp over fsdp\n"
        "use pp over stage as circular\ncompute bf16 reduce fp32"
    ),
    "exposed transfers beside a split backward": (
        "model llama3_8b(layers = 32)\nbatch 64 x 4096 tokens microbatch 2\ncluster 64 x l40s_node\n"
        "mesh pipe 2 > data 8 > seq 4 > tp 8\nshard ffn over tp\nuse fsdp over data\nshard sequence over seq\n"
        "attention.core as ring(balance = headtail, rotate = p2p)\nsplit layers over pipe as zbv\n"
        "compute bf16 reduce fp32\ngather params per step bucket 1 layers\nrealise as bridge"
    ),
    "a rank with a slower update": (
        "model deepseek_v2_lite(layers = 27)\nbatch 16 x 2048 tokens microbatch 1\ncluster h100_node\n"
        "mesh pp 8 > ep 1\nuse fsdp over ep\nsplit layers over pp as zbv\ncompute bf16 reduce fp32\n"
        "gather params per step\ncompile loss as inductor"
    ),
    "two kinds of block": (
        "model llama4_maverick(embed = 1024, kv_heads = 8, head_dim = 128, ffn = 1024, expert_ffn = 1536, layers = 2)\n"
        "batch 32 x 128 tokens microbatch 2\ncluster 2 x l40s_node\nmesh dp 16\nuse zero1 over dp\n"
        "compute bf16 reduce fp32\nrecompute none"
    ),
    "a tied head and one microbatch": (
        "model qwen3_0_6b(layers = 1)\nbatch 24 x 128 tokens\ncluster 1 x gb300_nvl72(24)\n"
        "mesh dp_replicate 1 > dp_shard 24\nuse hsdp over dp_replicate, dp_shard\ncompute bf16 reduce fp32"
    ),
    "gradients beside a wait for the host": (
        "model llama3_1_70b(heads = 8, layers = 2)\nbatch 16 x 128 tokens microbatch 2\ncluster tpu_7x(1x4x1)\n"
        "mesh data 8\nuse zero2 over data\ncompute bf16 reduce fp32\noffload ffn.mid to host"
    ),
    "copies beside waits for other stages": (
        "model qwen3_micro(layers = 8)\nbatch 4096 x 1024 tokens microbatch 4\ncluster 4 x tpu_7x(4x16x2)\n"
        "mesh pp 8 > fsdp 128\nuse ddp over fsdp\n"
        "split layers over pp as 1f1b stages [embed + 1, 1, 1, 1, 1, 1, 2, head]\n"
        "compute bf16 reduce fp32\noffload ffn.gate to host"
    ),
    "replays beside reductions of a split backward": (
        "model llama_micro_tied(embed = 48, vocab = 128, ffn = 182, layers = 6)\nbatch 12 x 24 tokens microbatch 1\n"
        "cluster 6 x cpu_local\nmesh stage 3 > fsdp 2\nuse fsdp over fsdp\nsplit layers over stage as zbv\n"
        "compute fp32\ngather params per step prefetch 2 layers\nrecompute blocks"
    ),
}


@pytest.mark.parametrize("case", [*CASES, 0, 1], ids=str)
def test_more_machine_or_less_to_do_is_never_slower(case: str | int, tmp_path: Path) -> None:
    drawn = drawn_of(case) if isinstance(case, int) else Drawn("p", tuple(CASES[case].splitlines()))
    examined = examine(write(drawn, tmp_path))
    costed, target = examined.costed, examined.report.target or NO_TARGET
    assert costed is not None
    more = *physics.more_machine(costed, target), *physics.more_work(costed, target), *physics.again(costed, target)
    assert more == ()


@pytest.mark.parametrize("seed", sampled(range(40), 8, 2))
def test_every_view_of_an_extreme_plan_exists(seed: int, tmp_path: Path) -> None:
    extremes.views(write(extremes.draw(seed), tmp_path))


@pytest.mark.parametrize("framework", ["bridge", "torchtitan", "deepspeed"])
def test_search_counts_the_memory_that_check_counts(framework: str, tmp_path: Path) -> None:
    """Workspaces, the update's copies, and what an allocator loses across nodes included."""
    path = tmp_path / "plan.plan"
    path.write_text(
        "plan p\nmodel llama3_8b\nbatch 32 x 4096 tokens microbatch 1\ncluster 2 x h100_node\nmesh fsdp 16\n"
        f"use fsdp over fsdp\ncompute bf16 reduce fp32\nrealise as {framework}\n"
    )
    extremes.views(path)


@pytest.mark.parametrize("framework", ["bridge", "megatron", "planc"])
def test_search_and_check_have_one_answer_on_what_fits(framework: str, tmp_path: Path) -> None:
    """Above the prediction a layout fits, above the lower end of what is held it may (W0508), below that it does not
    (E0501)."""
    path = tmp_path / "plan.plan"
    hardware = (ROOT / "plans/hardware/h100.plan").read_text().replace("h100", "own").replace(" nv", " my")
    text = (
        'plan p\nimport "own.plan"\nmodel llama3_8b\nbatch 32 x 4096 tokens microbatch 1\ncluster 2 x own_node\n'
        f"mesh fsdp 16\nuse fsdp over fsdp\ncompute bf16 reduce fp32\nrealise as {framework}\n"
    )
    path.write_text(text)
    (tmp_path / "own.plan").write_text(hardware)
    costed = examine(path, targets=()).costed
    assert costed is not None
    total, low = costed.memory.per_device_gib.total, costed.lower_bound_gib
    for room, fits, code in (
        (total * 1.001, True, None),
        ((total + low) / 2, False, "W0508"),
        (low / 1.001, False, "E0501"),
    ):
        (tmp_path / "own.plan").write_text(hardware.replace("memory = 80 GiB", f"memory = {room:.4f} GiB"))
        codes = {d.code for d in examine(path, targets=()).report.diagnostics}
        found = search(path, top=1)
        assert bool(found.best) == fits and (code is None or code in codes), (room, codes)
        assert found.may_fit == (code == "W0508")
        if found.nearest_miss is not None:
            assert ("E0501" in codes) == (found.none_fits == "no layout fits")


def test_no_op_lies_above_the_roof() -> None:
    """Keys and values take a share of the product that queries have most of, and of its bytes."""
    path = ROOT / "plans/llama3_70b_h100.plan"
    examined = examine(path)
    assert examined.costed is not None
    data = roofline(PageSubject(examined=examined, costed=examined.costed, command=""))
    for op in data.ops:
        assert op.bytes <= op.seconds * data.bytes_per_s * physics.EXACT, op
        assert op.flops <= op.seconds * data.flops_per_s * physics.EXACT, op


def test_every_command_is_asked() -> None:
    assert sorted((*extremes.VIEWS, *extremes.NO_PLAN, *extremes.SLOW)) == sorted(COMMANDS)
