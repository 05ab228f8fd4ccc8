"""`make beside-torchtitan TITAN=PYTHON`: steps of planc's programs beside torchtitan's, on fake ranks, and the page
docs/measured/beside-torchtitan.md.

PYTHON is of an environment with torch 2.13 and `torchtitan==0.3.0`, which is no part of the checkout's. Nothing is run
on a GPU, so there are no seconds here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from planc.backends.cuda.audit import trace
from planc.backends.cuda.audit.balance import balanced
from planc.backends.cuda.audit.observe import made_meshes
from planc.backends.cuda.audit.own_code import one_sequence_a_row
from planc.backends.cuda.models.llama import Core
from planc.driver import lower
from planc.files import write_atomically
from tests.lab.measure import step_figures
from tests.plans import ROOT

PAGE = ROOT / "docs" / "measured" / "beside-torchtitan.md"
PLAN = """plan beside
model {model}
batch 8 x {tokens} tokens microbatch 1
cluster {cluster}
{layout}
optimizer adamw
compute bf16 reduce fp32
{recompute}
{loss}
"""
CHUNKS = "loss in 8 chunks"
SELECTED = (
    "recompute attention.norm, attention.rope_q, attention.rope_k, attention.add, ffn.norm, ffn.add, ffn.swiglu, "
    "attention.k, attention.out, ffn.up"
)
"""The sentence that `planc import` makes of torchtitan's selective policy."""
FSDP = "mesh fsdp 8\nuse fsdp over fsdp"
EP = "mesh fsdp 8\nview ep 8 of fsdp for experts\nuse fsdp over fsdp\nuse ep over ep"
TP = "mesh fsdp 8 > tp 8\nuse tp over tp\nuse sp over tp\nuse fsdp over fsdp"
RECOMPUTES = {"none": "", "selective": SELECTED, "full": "recompute blocks"}
SIZES: dict[str, dict[str, Any]] = {
    "Llama 3 8B": {"model": "llama3", "flavor": "8B", "tokens": 8192},
    "Llama 3 70B": {"model": "llama3", "flavor": "70B", "tokens": 8192, "tp": 8},
    "Qwen3 30B-A3B": {"model": "qwen3", "flavor": "30B-A3B", "tokens": 4096, "ep": 8, "top_k": 8},
    "DeepSeek-V3 16B": {"model": "deepseek_v3", "flavor": "16B", "tokens": 4096, "ep": 8, "top_k": 6},
}
MODELS = {
    "Llama 3 8B": ("llama3_8b", FSDP),
    "Llama 3 70B": ("llama3_70b", TP),
    "Qwen3 30B-A3B": ("qwen3_30b_a3b", EP),
    "DeepSeek-V3 16B": ("deepseek_v2_lite", EP),
}
PAIRS = [("Llama 3 8B", recompute) for recompute in RECOMPUTES] + [(name, "full") for name in list(SIZES)[1:]]


def of_planc(text: str) -> dict[str, Any]:
    """The figures of the program of a plan."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "beside.plan"
        path.write_text(text)
        program = lower(path, "cuda")
    sharded, emitted, model = program.sharded, program.load(), trace._on_meta(program)

    def one_op(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *more: Any, **options: Any) -> torch.Tensor:
        return step_figures.attention(q, k, v)[0]

    with trace._fake_group(sharded, 0), trace._static_stages(emitted, sharded), balanced(emitted, sharded):
        mesh = emitted.build_mesh("cpu")
        divided, meshes = emitted.parallelize(model, mesh), made_meshes(emitted, mesh)
        with FakeTensorMode(allow_non_fake_inputs=True), one_sequence_a_row(), ExitStack() as within:
            divided.to_empty(device="cpu")
            step = trace._Step(program, emitted, divided, [divided], mesh)
            figures = within.enter_context(step_figures.counted(*meshes))

            def add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
                """A GPU's matmul adds by itself."""
                figures.flops += 2 * total.numel() * left.shape[-1]

            within.enter_context(patch.object(F, "scaled_dot_product_attention", one_op))
            within.enter_context(patch.object(Core, "_attention_mask", lambda core, *sizes: None))
            if hasattr(emitted, "add_product"):
                within.enter_context(patch.object(emitted, "add_product", add_product))
            figures.hold(step.state())
            step()
    return figures.as_json()


def of_titan(python: str, options: dict[str, Any]) -> dict[str, Any]:
    """The figures of torchtitan's step, from a process of its environment."""
    command = [python, "-P", "-m", "tests.lab.measure.titan_step", json.dumps(options)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def pair(python: str, name: str, recompute: str, layers: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The figures of planc and of torchtitan, both with the loss in eight chunks."""
    model, layout = MODELS[name]
    text = PLAN.format(
        model=f"{model}(layers = {layers})",
        tokens=SIZES[name]["tokens"],
        cluster="8 x h100_node" if "tp" in layout else "1 x h100_node",
        layout=layout,
        recompute=RECOMPUTES[recompute],
        loss=CHUNKS,
    )
    options = {**SIZES[name], "dp": 8, "layers": layers, "recompute": recompute, "chunked": True}
    return of_planc(text), of_titan(python, options)


def calls_and_gb(figures: dict[str, Any]) -> tuple[int, float]:
    """All collectives together but those of numbers: calls, and GB of their payloads."""
    return sum(n for n, _ in figures["sent"].values()), sum(gb for _, gb in figures["sent"].values())


HEAD = """# Programs beside torchtitan's

Written by `make beside-torchtitan`. A training step of rank 0 on fake tensors and fake ranks: planc's program beside
torchtitan {version}'s own model, layout, loss (in 8 chunks, its default) and clipping, under one instrument, {layers}
layers each; fsdp 8, and with it tp 8 or ep 8. Each figure is planc's, torchtitan's and planc's over torchtitan's.
Attention is one op for both, norms one kernel, AdamW foreach, nothing compiled; collectives of counts and of less than
a megabyte are left out, and experts multiply in one grouped product on both sides. Nothing was run on a GPU: these are
calls, bytes and FLOPs, and no seconds. Context parallelism is not here: torchtitan's hook around its attention does
not see the one op. Steps in which planc's is the worse in something come first: Qwen3's router weights are exchanged
in 12 calls more, 1.6 MB together; the selective sentence runs other matmuls again than torchtitan's list, 0.4 % more.

| step | recompute | calls | GB sent | TFLOP | GB of other ops | peak GiB |
|---|---|--:|--:|--:|--:|--:|
"""


def row(name: str, recompute: str, ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """A line of the page."""
    one, other = calls_and_gb(ours), calls_and_gb(theirs)
    cells = [f"{one[0]} {other[0]} {one[0] / other[0]:.2f}x", _beside(one[1], other[1])]
    cells += [_beside(ours[key], theirs[key]) for key in ("tflop", "other_gb", "peak_gib")]
    return f"| {name} | {recompute} | {' | '.join(cells)} |\n"


def _beside(ours: float, theirs: float) -> str:
    return f"{ours:.2f} {theirs:.2f} {ours / theirs:.2f}x"


def _best(line: str) -> float:
    """Rows by their worst ratio, the worst first."""
    return -max(float(word[:-1]) for word in line.split() if word.endswith("x"))


def main(python: str, names: list[str], layers: int = 4) -> None:
    """Run the pairs, and write the page if none is chosen by name."""
    lines = []
    for name, recompute in PAIRS:
        if names and name not in names:
            continue
        ours, theirs = pair(python, name, recompute, layers)
        lines.append(row(name, recompute, ours, theirs))
        print(lines[-1], end="", flush=True)
        if names:
            print(json.dumps({"planc": ours, "torchtitan": theirs}, indent=1))
    if not names:
        write_atomically(PAGE, HEAD.format(version="0.3.0", layers=layers) + "".join(sorted(lines, key=_best)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
