"""Presets: settings, and the compiled plan inside them, mostly with its sum made anew."""

from __future__ import annotations

import ast
import json
import random
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from planc.checks import check_plan
from planc.diag import PlanError
from planc.diag.text import render
from planc.driver import check
from planc.ir.program_shape import foreign
from planc.lowering import lower_plan
from planc.trainer.checkpoint.resume import NEWEST, start_of
from planc.trainer.preset.compiled import Compiled, checksum, toml_string
from planc.trainer.preset.compiled import compiled as in_full
from planc.trainer.preset.load import load_preset
from tests.fuzz.edits import as_bytes, as_input, damage, damaged, edited, made
from tests.fuzz.kinds import Kind
from tests.fuzz.kinds.plans import RUNTIMES

ROOT = Path(__file__).parents[3]
PLANS = ("tiny", "tiny_moe", "presets/llama3_8b_h100", "presets/qwen3_8b_v5p")
MORE = (
    "field/deepseek_v3_h800", "field/llama3_8b_fp8_offload", "field/llama3_405b_8k", "field/mixtral_8x22b_hsdp",
    "a schedule from a file", "a graph of its own", "a part of a graph", "an update of low rank",
)  # fmt: skip
"""Plans whose compiled forms have what those above lack; other seeds than the first have these too."""
BODY = """model     llama_tiny(layers = 8)
batch     16 x 128 tokens microbatch 2
optimizer adamw
compute   fp32 reduce fp32
"""
OWN: dict[str, tuple[str, dict[str, str]]] = {
    "a schedule from a file": (
        'cluster 4 x cpu_local\nmesh pp 4\nsplit layers over pp as csv("s.csv")\n'
        "price 2 USD per node hour\ntrain for 1 B tokens\n",
        {"s.csv": "".join(",".join([*(f"{s}F{m}" for m in range(8)), *(f"{s}B{m}" for m in range(8))]) + "\n"
                          for s in range(4))},
    ),
    "a graph of its own": (
        'import "m.plan"\ncluster small\nmesh dp 4\nuse zero1 over dp\noverlap dp as none\n',
        {"m.plan": "hardware m\nchip c(bf16 = 9 TFLOP/s, memory = 8 GiB, memory_bandwidth = 1 TB/s)\n"
                   "link l(bandwidth = 9 GB/s, latency = 2 us, back_bandwidth = 5 GB/s)\ngraph small of c\n"
                   "points a, b as chip in n\npoints c, d as chip in m\npoints s as switch in n\n"
                   "wire a, b, c, d to s over l x 2 at 50 %\n"},
    ),
    "a part of a graph": (
        'import "m.plan"\ncluster pod\nmesh fsdp 8 > tp 2\nuse fsdp over fsdp\nuse tp over tp\n'
        "override output = replicated\nattention.core as flash\n",
        {"m.plan": "hardware m\nchip c(bf16 = 9 TFLOP/s, memory = 8 GiB, memory_bandwidth = 1 TB/s)\n"
                   "link l(bandwidth = 9 GB/s, latency = 2 us)\ngraph pod of c\n"
                   "fabric f = fat_tree(nodes = 8, chips = 2, leaf = 4, spines = 2, link = l, out = l)\n"},
    ),
    "an update of low rank": (
        "cluster 1 x h100_node\nmesh fsdp 2 > cp 4\nuse fsdp over fsdp\nuse cp over cp\nattention.core as flash\n"
        "lora rank 8 on attention.q, ffn.up\nfreeze blocks except norms\nrealise as torchtitan\n",
        {},
    ),
}  # fmt: skip
"""Plans that are in no file: their sentences after BODY, and the files beside them."""
SETTINGS: dict[str, Any] = {
    "plan": {"source": "", "set": {}},
    "train": {
        "steps": 10, "lr": 1e-3, "warmup_steps": 2, "schedule": "cosine", "min_lr": 1e-4, "betas": [0.9, 0.95],
        "weight_decay": 0.1, "clip_norm": 1.0, "seed": 3, "eval_every": 5, "on_nan": "skip", "hang_s": 600.0,
        "optimizer": "adamw", "decay_groups": {"*norm*": 0.0}, "log_every": 2, "deterministic": True,
    },
    "data": {"source": "python-stdlib", "max_bytes": 1 << 17},
    "checkpoint": {"folder": "runs/x", "every_steps": 5, "keep": 2, "elastic": "fsdp", "allow": ["lr"]},
    "watch": {"metrics": "runs/x/metrics.jsonl"},
}  # fmt: skip


@cache
def compiled(name: str) -> tuple[str, dict[str, str]]:
    """One of the plans of the repository in full, and the files that its sentences name."""
    if name in OWN:
        text, files = f"plan x\n{BODY}{OWN[name][0]}", OWN[name][1]
    else:  # without sentences of one target, which no preset has
        lines = (ROOT / "plans" / f"{name}.plan").read_text().splitlines(keepends=True)
        text, files = "".join(line for line in lines if not line.startswith("on ")), {}
    with tempfile.TemporaryDirectory() as folder:
        for file, content in {**files, "x.plan": text}.items():
            (Path(folder) / file).write_text(content)
        found = in_full(Path(folder) / "x.plan", {})
    return found.text, dict(found.files)


def _tree(name: str) -> dict[str, Any]:
    text, files = compiled(name)
    return {"settings": SETTINGS, "compiled": {"lines": text.splitlines(), "files": files}}


def make(seed: int, index: int) -> bytes:
    """Half have another plan, a third other settings, the rest both or damaged text."""
    rng = random.Random(f"{seed}:{index}")
    name, share = rng.choice(PLANS if seed == 1 else (*PLANS, *MORE)), rng.random()
    tree = _tree(name)
    edits = [{"do": "base", "to": name}]
    edits += made(rng, tree, ["compiled", _part(rng, tree["compiled"])]) if share < 0.6 else []
    edits += made(rng, tree, ["settings", _part(rng, SETTINGS)]) if share >= 0.5 else []
    edits += [damage(rng)] if share > 0.92 else []
    edits += [{"do": "old sum"}] if rng.random() < 0.05 else []
    return as_input(edits)


def _part(rng: random.Random, tree: dict[str, Any]) -> str:
    """A key whose value has parts: each as often as another, or all edits would be of the largest."""
    return rng.choice([key for key, value in tree.items() if isinstance(value, dict | list) and value])


def preset_text(edits: list[dict[str, Any]]) -> str:
    """The preset that the edits make."""
    name = next((e["to"] for e in edits if e["do"] == "base"), PLANS[0])
    tree = edited(_tree(name), edits)
    settings, plan = tree["settings"], tree["compiled"]
    part = settings.get("plan")
    if isinstance(part, dict) and isinstance(plan, dict):
        lines, files = plan.get("lines"), plan.get("files")
        part["compiled"] = "\n".join(map(str, lines if isinstance(lines, list) else [lines])) + "\n"
        part["files"] = files if isinstance(files, dict) else {}
        made = Compiled(*compiled(name)) if any(e["do"] == "old sum" for e in edits) else None
        part["sha256"] = {"compiled": checksum(made or Compiled(part["compiled"], part["files"]), {})}
    return damaged("".join(f"{_key(key)} = {_toml(value)}\n" for key, value in settings.items()), edits)


def _toml(value: Any) -> str:
    """A value on one line; the compiled plan as `planc embed` writes it."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str):
        return toml_string(value)[0] if "\n" in value else json.dumps(value)
    if isinstance(value, float):
        return str(value)
    return json.dumps(value)


def _key(name: str) -> str:
    return json.dumps(name)


def run(data: bytes, folder: Path, index: int) -> tuple[str, ...]:
    path = folder / "e.toml"
    path.write_bytes(as_bytes(preset_text(json.loads(data))))
    try:
        preset = load_preset(path)
        start_of(preset, NEWEST if preset.checkpoints else None, "0" * 64)
    except PlanError as error:
        assert error.diagnostics, "refused without a reason"  # noqa: PT017
        shown = render(error.diagnostics, {})
        assert all(c.isprintable() or c == "\n" for c in shown), "a control character is printed"
        return ("refused",)
    assert [p for p in folder.iterdir() if p != path] == [], "reading it wrote something"
    try:
        checked = check_plan(preset.plan)
    except PlanError:
        return ("loaded",)
    report = check(preset.plan)
    json.dumps(report.to_json(), allow_nan=False)
    target, runtime = RUNTIMES[index % 3]
    try:
        text = lower_plan(checked, target, runtime).text
    except PlanError:
        return "loaded", "checked", f"refused by {runtime}"
    ast.parse(text)
    why = foreign(text)
    assert not why, f"the program is none that planc loads: {why}"
    return "loaded", "checked", f"lowered for {runtime}"


def warm() -> None:
    for name in (*PLANS, *MORE):
        compiled(name)


KIND = Kind(
    "presets", ".json", "items", 20_000, make, run, warm, deep=("refused", "loaded", "checked", "lowered for torch")
)
