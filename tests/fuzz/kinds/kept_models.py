"""Kept op graphs, whose sums are made anew: each is a model that is checked and lowered, or refused as it is read."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

from planc.catalog import build_model
from planc.driver import examine
from planc.ir.saved_model import FORMAT, SavedModel, _digest
from tests.fuzz.edits import Edit, as_input, edited, made, places, value_at
from tests.fuzz.kinds import Kind
from tests.fuzz.kinds.plans import lowered

MODELS = ("llama_tiny", "mixtral_micro", "deepseek_micro", "nemotron_h_micro")
PLAN = """plan own
model from code "own"
batch 64 x 32 tokens microbatch 1
cluster 1 x h100_node
mesh fsdp 4 > tp 2
use fsdp over fsdp
use tp over tp
optimizer adamw
compute bf16 reduce fp32
"""


@cache
def good(name: str) -> dict[str, Any]:
    """The file of a model of the catalog, without its sum."""
    kept = json.loads(SavedModel(made_from="x", source_sha256="", model=build_model(name)).text())
    return {name: value for name, value in kept.items() if name not in ("format", "sha256")}


def make(seed: int, index: int) -> bytes:
    rng = random.Random(f"{seed}:{index}")
    name = rng.choice(MODELS)
    edits = (
        made(rng, good(name), ["model"])
        if rng.random() < 0.3
        else [_near(rng, name) for _ in range(rng.choice((1, 1, 2, 3)))]
    )
    return as_input([{"do": "base", "to": name}, *edits])


def _near(rng: random.Random, name: str) -> Edit:
    """An edit after which a model is still nearly one: names of dims moved, left out or doubled, and sizes."""
    model = good(name)["model"]
    if rng.random() < 0.2:
        size = rng.choice((1, 2, 3, 7, 10**6, 10**9, 10**12, 10**15))
        return {"do": "set", "at": ["model", "sizes", rng.choice(list(model["sizes"]))], "to": size}
    lists = [place for place in dims_of(name) if isinstance(value_at(good(name), list(place)), list)]
    place, dims = list(rng.choice(lists)), [*model["sizes"], "batch", "sequence", "slots"]
    held = list(value_at(good(name), place))
    nested = bool(held) and isinstance(held[0], list)
    more = rng.choice(([], [[rng.choice(dims)]], [[]]) if nested else ([], [rng.choice(dims)], held[:1]))
    return {"do": "set", "at": place, "to": rng.choice((held[1:], held[:-1], held[::-1], held)) + more}


@cache
def dims_of(name: str) -> tuple[tuple[str | int, ...], ...]:
    """Places of the lists of dims of a model."""
    found = [place for place in places(good(name)) if place[0] == "model" and "layers" not in place[1:]]
    return tuple(tuple(p) for p in found if isinstance(value_at(good(name), list(p)), list) and len(p) > 2)


def run(data: bytes, folder: Path, index: int) -> tuple[str, ...]:
    edits = json.loads(data)
    name = next((e["to"] for e in edits if e["do"] == "base"), MODELS[0])
    plain = edited(good(name), edits)
    text = json.dumps({"format": FORMAT, "sha256": _digest(plain), **plain}, sort_keys=True)
    (folder / "own.model.json").write_text(text)
    (folder / "x.plan").write_text(PLAN)
    found = examine(folder / "x.plan")
    json.dumps(found.report.to_json(), allow_nan=False)
    if found.plan is None:
        return ("refused",)
    if found.sharded is None:
        return ("a model",)
    reached = "costed" if found.report.step is not None else "checked"
    return "a model", reached, lowered(found, index)


KIND = Kind("kept_models", ".json", "items", 20_000, make, run, deep=("refused", "a model", "costed"))
