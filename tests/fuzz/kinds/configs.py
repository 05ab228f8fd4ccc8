"""Model configs of Hugging Face, read by `model from "config.json"`."""

from __future__ import annotations

import json
import random
from pathlib import Path

from planc.driver import examine
from tests.catalog.published import CONFIGS
from tests.fuzz.edits import as_bytes, as_input, damage, damaged, edited, made
from tests.fuzz.kinds import Kind
from tests.fuzz.kinds.plans import lowered

PLAN = """plan x
model     from "config.json"
batch     64 x 4096 tokens microbatch 1
cluster   1 x h100_node
mesh      fsdp 4 > tp 2
use       fsdp over fsdp
use       tp   over tp
optimizer adamw
compute   bf16 reduce fp32
"""


def make(seed: int, index: int) -> bytes:
    rng = random.Random(f"{seed}:{index}")
    name = rng.choice(list(CONFIGS))
    edits = made(rng, CONFIGS[name])
    if rng.random() < 0.3:
        other = CONFIGS[rng.choice(list(CONFIGS))]
        key = rng.choice(list(other))
        edits.append({"do": "set", "at": [key], "to": other[key]})
    if rng.random() < 0.1:
        edits.append(damage(rng))
    return as_input([{"do": "base", "to": name}, *edits])


def run(data: bytes, folder: Path, index: int) -> tuple[str, ...]:
    edits = json.loads(data)
    name = next((e["to"] for e in edits if e["do"] == "base"), next(iter(CONFIGS)))
    (folder / "config.json").write_bytes(as_bytes(damaged(json.dumps(edited(CONFIGS[name], edits)), edits)))
    (folder / "x.plan").write_text(PLAN)
    found = examine(folder / "x.plan")
    json.dumps(found.report.to_json(), allow_nan=False)
    codes = {d.code for d in found.report.diagnostics}
    if found.plan is None:
        assert codes & {"E0112", "E0104"}, codes
        return ("refused",)
    if found.sharded is None:
        return ("a model",)
    reached = "costed" if found.report.step is not None else "checked"
    return "a model", reached, lowered(found, index)


KIND = Kind(
    "configs", ".json", "items", 20_000, make, run,
    deep=("refused", "a model", "costed", "lowered for torch"),
)  # fmt: skip
