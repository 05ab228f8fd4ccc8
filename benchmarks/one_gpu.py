"""Predicted against measured on one CUDA GPU: step time, memory, MFU of a dense Llama in bf16.

    python benchmarks/one_gpu.py [--any-torch] [--out FOLDER]

Each case is a plan on a cluster of one chip, checked for the prediction, lowered, and run through the
cuda runtime for a few steps. The table is written as Markdown and the figures as JSON. `--any-torch`
takes the version guard out of the emitted text, and the table says so.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

PLAN = """plan one_gpu
import    "one_gpu_hardware.plan"
model     llama3_8b(layers = {layers})
batch     {sequences} x {tokens} tokens microbatch {microbatch}
cluster   1 x {node}
mesh      fsdp 1
use       fsdp over fsdp
compute   bf16 reduce fp32
recompute {recompute}
"""

CASES: list[dict[str, Any]] = [
    {"layers": 4, "tokens": 4096, "microbatch": 1, "recompute": "none"},
    {"layers": 4, "tokens": 4096, "microbatch": 2, "recompute": "none"},
    {"layers": 4, "tokens": 8192, "microbatch": 1, "recompute": "none"},
    {"layers": 4, "tokens": 8192, "microbatch": 1, "recompute": "attention.core"},
    {"layers": 4, "tokens": 8192, "microbatch": 1, "recompute": "blocks"},
    {"layers": 4, "tokens": 8192, "microbatch": 2, "recompute": "blocks"},
    {"layers": 8, "tokens": 4096, "microbatch": 1, "recompute": "none"},
    {"layers": 8, "tokens": 4096, "microbatch": 1, "recompute": "blocks"},
]
STEPS, WARM = 6, 2
MATMULS = [(4096, 4096, 4096), (4096, 4096, 14336), (8192, 4096, 14336), (8192, 14336, 4096), (4096, 4096, 128256)]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--any-torch", action="store_true")
    options.add_argument("--out", default="runs/one_gpu")
    chosen = options.parse_args()
    import torch

    name = torch.cuda.get_device_name(0)
    node = "one_h200" if "H200" in name else "one_h100"
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29511"}
    figures: dict[str, Any] = {"device": name, "torch": torch.__version__, "guard_removed": chosen.any_torch}
    figures["matmul_tflops"] = {"x".join(map(str, shape)): matmul_tflops(shape) for shape in MATMULS}
    figures["copy_gb_per_s"] = copy_gb_per_s()
    figures["cases"] = []
    for case in CASES:
        figures["cases"].append(run(case, node, chosen.any_torch))
        print(json.dumps(figures["cases"][-1]), flush=True)
    out = Path(chosen.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "one_gpu.json").write_text(json.dumps(figures, indent=1))
    (out / "one_gpu.md").write_text(table(figures))
    print(table(figures))


def run(case: dict[str, Any], node: str, any_torch: bool) -> dict[str, Any]:
    """One case: its prediction, and the median step after warming up."""
    import torch

    import planc
    from planc.backends.cuda import runtime
    from planc.trainer.session import Settings

    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(Path(__file__).parent / "one_gpu_hardware.plan", folder)
        path = Path(folder) / "one_gpu.plan"
        path.write_text(PLAN.format(sequences=8, node=node, **case))
        report, program = planc.check(path, target="cuda"), planc.lower(path, "cuda")
    if any_torch:
        program = replace(program, text=program.text.replace('startswith("2.13.")', 'startswith("2.")'))
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    session = runtime.start(program, Settings(), cheap)
    rng = np.random.default_rng(0)
    shape = (8, case["tokens"])
    seconds, losses = [], []
    for _ in range(STEPS):
        tokens = rng.integers(0, 128256, shape, dtype=np.int32)
        torch.cuda.synchronize()
        start = time.perf_counter()
        losses.append(session.step(tokens, np.roll(tokens, -1, 1), 1e-4)[0])
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() / 2**30
    reserved = torch.cuda.max_memory_reserved() / 2**30
    free, total = torch.cuda.mem_get_info()
    del session
    gc.collect()
    step_s = statistics.median(seconds[WARM:])
    flops = report.model.model_flops_per_token * report.tokens_per_step
    used = report.memory.per_device_gib
    return {
        **case,
        "predicted_step_s": report.step.time_s,
        "measured_step_s": step_s,
        "predicted_mfu": report.step.mfu,
        "measured_mfu": flops / step_s / 989e12,
        "predicted_gib": used.total - used.reserve,
        "measured_allocated_gib": peak,
        "measured_reserved_gib": reserved,
        "measured_device_gib": (total - free) / 2**30,
        "predicted_total_gib": used.total,
        "predicted_parts": report.memory.to_json()["per_device_gib"] if hasattr(report.memory, "to_json") else None,
        "first_loss": losses[0],
    }


def cheap(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Values of the right size, without drawing billions of them."""
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    block = np.random.default_rng(len(name)).normal(0, 0.02, 1 << 20).astype(np.float32)
    return np.resize(block, shape)


def matmul_tflops(shape: tuple[int, int, int]) -> float:
    """Of a [m, k] x [k, n] product in bf16 on random data: the median of 20."""
    import torch

    m, k, n = shape
    a, b = torch.randn(m, k, device="cuda").bfloat16(), torch.randn(k, n, device="cuda").bfloat16()
    return 2 * m * k * n / _median_s(lambda: a @ b) / 1e12


def copy_gb_per_s() -> float:
    """Of a device-to-device copy of 2 GB: bytes read and written."""
    import torch

    a = torch.randn(1 << 29, device="cuda")
    b = torch.empty_like(a)
    return 2 * a.numel() * 4 / _median_s(lambda: b.copy_(a)) / 1e9


def _median_s(call: Any) -> float:
    import torch

    times = []
    for _ in range(25):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times[5:])


def table(figures: dict[str, Any]) -> str:
    """Markdown: one row a case."""
    guard = ", version guard of the emitted text removed" if figures["guard_removed"] else ""
    lines = [f"{figures['device']}, torch {figures['torch']}{guard}", ""]
    lines += ["| layers | tokens | microbatch | recompute | step s: predicted | measured | error | GiB: predicted | measured | error | MFU measured |"]
    lines += ["|---|---|---|---|---|---|---|---|---|---|---|"]
    for c in figures["cases"]:
        step = c["predicted_step_s"] / c["measured_step_s"] - 1
        memory = c["predicted_gib"] / c["measured_allocated_gib"] - 1
        lines.append(
            f"| {c['layers']} | {c['tokens']} | {c['microbatch']} | {c['recompute']} | {c['predicted_step_s']:.3f}"
            f" | {c['measured_step_s']:.3f} | {step:+.0%} | {c['predicted_gib']:.1f} | {c['measured_allocated_gib']:.1f}"
            f" | {memory:+.0%} | {c['measured_mfu']:.1%} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
