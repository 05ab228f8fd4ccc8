"""Rules for the leaves of a JAX tree, beside a plan: good ones with words, lines and bytes changed."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from planc.diag.errors import PlanError
from planc.driver import lower
from tests.fuzz.edits import Edit, as_bytes, as_input, damage, damaged
from tests.fuzz.kinds import Kind

PLANS = ("tiny.plan", "tiny_moe.plan")
GOOD = (
    '"*/wte" = vocab, embed',
    '"*/q" = layers, embed, heads, head_dim',
    '"*/k" = layers, embed, kv_heads, head_dim',
    '"*/o" = layers, heads * head_dim, embed as layers.*.attention.wo',
    '"*/qkv" = embed, _',
    '"*scale" = embed',
)
WORDS = (
    "vocab", "embed", "ffn", "heads", "head_dim", "layers", "_", "*", ",", "as", "=", "as layers.*.attention.wq", "#",
    '"', '"*"', '"**/q"', "batch", "sequence", "experts", "", "heads * heads", "layers * embed", "\x1b[2J",
    "٣", " " * 9,
)  # fmt: skip


def make(seed: int, index: int) -> bytes:
    rng = random.Random(f"{seed}:{index}")
    edits: list[Edit] = [{"do": "base", "to": rng.randrange(len(PLANS))}]
    for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
        row = rng.randrange(len(GOOD))
        to = rng.choice((*WORDS, *WORDS, *GOOD))
        edits.append(
            {"do": rng.choice(("word", "word", "delete", "add")), "row": row, "word": rng.randrange(6), "to": to}
        )
    if rng.random() < 0.1:
        edits.append(damage(rng))
    return as_input(edits)


def written(edits: list[Edit]) -> str:
    """The text of a file of rules."""
    lines = [line.split() for line in GOOD]
    for edit in edits:
        if edit["do"] == "word":
            words = lines[edit["row"] % len(lines)]
            words[edit["word"] % max(len(words), 1) : edit["word"] % max(len(words), 1) + 1] = [edit["to"]]
        elif edit["do"] == "add":
            lines.append([edit["to"]])
        elif edit["do"] == "delete":
            lines[edit["row"] % len(lines)] = []
    return damaged("\n".join(" ".join(line) for line in lines) + "\n", edits)


def tree_of(sizes: dict[str, int]) -> dict[str, Any]:
    """Shapes of a tree that the good rules fit."""
    layers, embed, heads, head_dim = (sizes[d] for d in ("layers", "embed", "heads", "head_dim"))
    shapes = {
        "wte": (sizes["vocab"], embed),
        "q": (layers, embed, heads, head_dim),
        "k": (layers, embed, sizes["kv_heads"], head_dim),
        "o": (layers, heads * head_dim, embed),
        "qkv": (embed, 3 * embed),
        "scale": (embed,),
    }
    return {"p": {name: SimpleNamespace(shape=shape) for name, shape in shapes.items()}}


def run(data: bytes, folder: Path, index: int) -> tuple[str, ...]:
    from planc.backends.xla.runtime.trees.shardings import leaf_specs

    edits = json.loads(data)
    base = next((edit["to"] for edit in edits if edit["do"] == "base"), 0)
    plan = folder / "x.plan"
    plan.write_text((Path(__file__).parents[3] / "plans" / PLANS[base % len(PLANS)]).read_text())
    plan.with_suffix(".rules").write_bytes(as_bytes(written(edits)))
    program = lower(plan, "xla")
    tree = tree_of(program.plan.model.sizes)
    try:
        specs = leaf_specs(program, tree, program.rules, None, "params")
    except PlanError as error:
        return refused(error)
    assert specs is not None
    for spec, leaf in zip(specs, sorted(tree["p"].items()), strict=True):
        axes = [axis for group in spec for axis in group]
        assert len(set(axes)) == len(axes) and len(spec) == len(leaf[1].shape)
        for group, size in zip(spec, leaf[1].shape, strict=True):
            assert size % program.plan.mesh.size(*group) == 0
    return ("laid out",)


def refused(error: PlanError) -> tuple[str, ...]:
    """Labels of the findings, each of which is printable and of a tree or its rules."""
    codes = {d.code for d in error.diagnostics}
    assert codes <= {"E1206", "E1221", "E1222", "E1223", "E1224", "E1225"}, codes
    assert all(d.message.isprintable() and d.help.isprintable() for d in error.diagnostics)
    return tuple(f"refused with {code}" for code in sorted(codes))


def warm() -> None:
    import planc.backends.xla.runtime.trees.shardings  # noqa: F401


KIND = Kind(
    "rules", ".json", "items", 5_000, make, run, warm,
    deep=("laid out", "refused with E1221", "refused with E1222", "refused with E1223", "refused with E1224"),
)  # fmt: skip
