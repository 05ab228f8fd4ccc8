"""One preset on three runtimes, compared: `make crosscheck` takes 100 steps in fp32 and in bf16, and writes a page.

The presets are `plans/presets/tiny.toml`, and the same with its plan's `compute` changed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from planc.driver import load
from planc.ir.program import Target
from planc.trainer.crosscheck import CrossCheck, crosscheck
from planc.trainer.embed import embed
from planc.trainer.receipt import Receipt
from planc.trainer.run import train

ROOT = Path(__file__).resolve().parents[2]
PRESET, PLAN = ROOT / "plans" / "presets" / "tiny.toml", ROOT / "plans" / "tiny.plan"
RUNTIMES: tuple[tuple[Target, str], ...] = (("cuda", "torch"), ("xla", "jax"), ("xla", "torch_xla"))
FP32 = "compute   fp32 reduce fp32"
STEPS = 100

HEAD = """# One preset, three runtimes

Written by `make crosscheck`: `plans/presets/tiny.toml` (mesh `fsdp 2 > tp 2`, sequence parallelism, clipping, a
cosine) in torch on 4 gloo processes, in JAX and in torch_xla on 4 virtual CPU devices, each from the same weights
on the same data. A difference is the largest loss less the smallest one of a step, in nats per token.

| compute | steps | largest difference | budget | mean | its budget | compiled after step 1 | scalar reads |
|---|--:|--:|--:|--:|--:|--:|--:|
"""


def preset_in(folder: Path, dtype: str) -> Path:
    """The preset with this compute dtype, in a folder of its own with its plan."""
    text = PLAN.read_text()
    assert FP32 in text
    plan, preset = folder / f"tiny_{dtype}.plan", folder / f"tiny_{dtype}.toml"
    plan.write_text(text.replace(FP32, f"compute   {dtype} reduce fp32"))
    preset.write_text(PRESET.read_text())
    embed(load(plan), plan, preset)
    return preset


def compared(folder: Path, dtype: str, steps: int) -> tuple[CrossCheck, list[Receipt]]:
    """The three runs' comparison. Receipts stay in the folder."""
    preset = preset_in(folder, dtype)
    receipts = [
        train(preset, target, runtime=runtime, steps=steps, receipt=folder / f"{dtype}.{runtime}.json")
        for target, runtime in RUNTIMES
    ]
    return crosscheck(receipts), receipts


def row(dtype: str, check: CrossCheck, receipts: list[Receipt]) -> str:
    """A line of the page; the last two figures are torch_xla's."""
    facts, mean = receipts[-1].compile, check.mean_budget
    cells = (
        dtype,
        str(len(receipts[0].losses)),
        f"{check.max_abs:.1e}",
        f"{check.budget:.0e}",
        f"{check.mean_abs:.1e}",
        f"{mean:.0e}" if mean else "",
        str(facts.uncached),
        str(facts.scalar_reads),
    )
    return f"| {' | '.join(cells)} |\n"


def main() -> int:
    folder = ROOT / "build" / "crosscheck"
    folder.mkdir(parents=True, exist_ok=True)
    found = {dtype: compared(folder, dtype, STEPS) for dtype in ("fp32", "bf16")}
    page = HEAD + "".join(row(dtype, check, receipts) for dtype, (check, receipts) in found.items())
    (ROOT / "docs" / "crosscheck.md").write_text(page)
    print(page)
    return 0 if all(check.ok for check, _ in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
