"""Every dtype that a sentence asks for and that the chip's file has no rate for is a finding, on every machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.checks import plan_findings
from planc.diag.errors import PlanError
from planc.driver import check, lower
from planc.ir.hardware import RATES
from planc.ir.target import Target
from planc.language import library
from planc.language.build import build_file
from planc.language.verbs.quantize import OPTIONS
from planc.language.verbs.store import DTYPES
from tests.random_plans.machines import machine

PLAN = """plan one
model     llama3_8b(layers = 2)
batch     64 x 128 tokens microbatch 1
cluster   {cluster}
mesh      dp {devices}
use       zero1 over dp
{rest}
"""


def codes(folder: Path, cluster: str, devices: int, rest: str) -> set[str]:
    path = folder / "one.plan"
    path.write_text(PLAN.format(cluster=cluster, devices=devices, rest=rest))
    plan = build_file(path).plan
    assert plan is not None
    return {d.code for d in plan_findings(plan)} & {"E0310", "W0311"}


@pytest.mark.parametrize("name", sorted(library.machines()))
def test_a_dtype_without_a_rate_is_found(name: str, tmp_path: Path) -> None:
    """An error where its products do not start, which is on GPUs; a warning where another dtype stands in."""
    kind, count, per_chip, _, _ = machine(name)
    cluster, devices = (f"1 x {name}", count) if kind == "node" else (f"{name}({'x'.join(['2'] * count)})", 2**count)
    rates = _rates(name)
    asked = {f"compute {dtype}": dtype for dtype in ("fp32", "bf16", "fp16", "tf32")}
    asked |= {f"compute fp32\nquantize ffn as {dtype}": dtype for dtype in OPTIONS}
    asked |= {f"compute fp32\nstore grads as {dtype}": dtype for dtype in DTYPES}
    for rest, dtype in asked.items():
        fails = kind == "node" and name != "cpu_local" and "quantize" in rest and dtype in ("float8", "float4")
        wanted = set() if dtype in rates else {"E0310"} if fails else {"W0311"}
        assert codes(tmp_path, cluster, devices * per_chip, rest) == wanted, (name, rest)


def _rates(name: str) -> set[str]:
    """The dtypes with a rate in the chip of a machine's own hardware file."""
    from planc.language.draft import Draft
    from planc.language.verbs.cluster import read
    from planc.syntax import parse_text

    for shape in ("", "(2x2)", "(2x2x2)"):
        draft = Draft()
        for sentence in parse_text(f"plan x\ncluster {name}{shape}\n", "x.plan").sentences:
            read(sentence, draft)
        if draft.cluster is not None:
            return {*draft.cluster.chip.flops_per_s}
    raise AssertionError(name)


FP16 = """hardware old
chip      old({rates}, memory = 32 GiB, memory_bandwidth = 900 GB/s, cores = 80, core_lanes = 64)
link      wire(bandwidth = 150 GB/s, latency = 3 us)
node      old_node = 8 x old over wire
network   net = leaf 32 at 50 GB/s
"""


def test_a_chip_of_ones_own(tmp_path: Path) -> None:
    """With any rates; bf16 on one with fp16 alone is as fast as fp32."""
    times = {}
    for rates in ("fp16", "fp32", "bf16", "fp16, fp32", "fp32, float8", "bf16, int8, float4"):
        said = {r: ("15 TFLOP/s" if r == "fp32" else "125 TFLOP/s") for r in rates.split(", ")}
        assert set(said) <= {*RATES}
        text = ", ".join(f"{name} = {rate}" for name, rate in said.items())
        (tmp_path / "old.plan").write_text(FP16.format(rates=text))
        path = tmp_path / "one.plan"
        for dtype in ("fp32", "bf16"):
            body = PLAN.format(cluster="1 x old_node", devices=8, rest=f"compute {dtype}")
            path.write_text(body.replace("model ", 'import "old.plan"\nmodel ', 1))
            report = check(path, target="none")
            assert ("W0311" in {d.code for d in report.diagnostics}) == (dtype not in said), (rates, dtype)
            assert report.step is not None
            times[rates, dtype] = report.step.compute_s
    assert times["fp16, fp32", "bf16"] > 4 * times["bf16", "bf16"]


def test_fp16_is_as_bf16_and_tf32_as_fp32_with_faster_matmuls(tmp_path: Path) -> None:
    """On an A100: bytes and seconds; MFU is of the dtype's own peak."""
    found = {}
    for dtype in ("fp32", "tf32", "bf16", "fp16"):
        (tmp_path / "one.plan").write_text(PLAN.format(cluster="1 x a100_node", devices=8, rest=f"compute {dtype}"))
        report = check(tmp_path / "one.plan", target="none")
        assert report.step is not None and report.memory is not None
        found[dtype] = report.step, report.memory.per_device_gib, report.collectives
        assert report.step.peak_dtype == dtype
    assert found["fp16"][0].time_s == pytest.approx(found["bf16"][0].time_s)
    assert found["fp16"][1] == pytest.approx(found["bf16"][1]) and found["tf32"][1] == pytest.approx(found["fp32"][1])
    seconds = {dtype: step.compute_s for dtype, (step, *_) in found.items()}
    assert seconds["bf16"] < seconds["tf32"] < seconds["fp32"]
    assert [c.row.dtype for c in found["tf32"][2]] == [c.row.dtype for c in found["fp32"][2]]


@pytest.mark.parametrize(
    ("compute", "target", "code"),
    [
        ("fp16", "cuda", "E0901"),
        ("fp16", "xla", "E0901"),
        ("bf16 reduce fp16", "cuda", "E0901"),
        ("tf32", "xla", "E0901"),
        ("tf32", "cuda", ""),
    ],
)
def test_programs_in_fp16_are_refused_and_in_tf32_for_cuda_alone(
    compute: str, target: Target, code: str, tmp_path: Path
) -> None:
    body = PLAN.format(cluster="1 x h100_node", devices=8, rest=f"compute {compute}")
    (tmp_path / "one.plan").write_text(body)
    if code:
        with pytest.raises(PlanError) as error:
            lower(tmp_path / "one.plan", target)
        assert [(d.code, d.span.line) for d in error.value.diagnostics] == [(code, 7)]
        return
    line = 'torch.set_float32_matmul_precision("high")'
    assert line in lower(tmp_path / "one.plan", target).text
    (tmp_path / "one.plan").write_text(body.replace("tf32", "fp32"))
    assert line not in lower(tmp_path / "one.plan", target).text
