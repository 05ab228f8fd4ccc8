"""Hostile strings in place of a word of a plan, of a preset's compiled plan (its sum made anew) or of a config's field.

The first wall holds: the front end or a target refuses, or the program is one that planc loads.
"""

from __future__ import annotations

import json
import keyword
import random
import re
from pathlib import Path
from typing import Any

from tests.catalog.published import CONFIGS
from tests.fuzz.kinds import Kind, configs, plans, presets
from tests.fuzz.strings import hostile

NAMES = (
    *keyword.kwlist, *keyword.softkwlist, "__class__", "__import__", "__init__", "print", "self", "torch", "os",
    "layers.*.class", "layers.__init__.x", "a.lambda.b", "x\nimport os", "import os", "x); import os; (", "'''", '"""',
    "x = __import__('os')", "# x", "{x}", "f'{x}'", "\\", "é", "ﬁ", "a b", "0", "-1", "..", "../x", "/etc/passwd", "",
)  # fmt: skip
"""Words of the emitted language, text that would end a string or a comment, names of files."""
WORD = re.compile(r'"[^"\n]*"|[\w.*]+')


def make(seed: int, index: int) -> bytes:
    rng = random.Random(f"names {seed}:{index}")
    string = rng.choice(NAMES) if rng.random() < 0.6 else hostile(seed, index)
    where = rng.choice(("plans", "presets", "configs"))
    edit: dict[str, Any]
    if where == "configs":
        base = rng.choice(list(CONFIGS))
        edit = {"do": "set", "at": [rng.choice(list(CONFIGS[base]))], "to": string}
    else:
        base = rng.choice((*presets.PLANS, *presets.MORE))
        lines = presets.compiled(base)[0].splitlines()
        at = rng.randrange(len(lines))
        words = list(WORD.finditer(lines[at])) or [re.search("$", lines[at])]
        word = rng.choice(words)
        assert word is not None
        old = word[0]
        new = rng.choice((string, f'"{string}"', old + string, f'{old[:-1]}{string}"' if old[-1:] == '"' else string))
        edit = {
            "do": "set",
            "at": ["compiled", "lines", at],
            "to": lines[at][: word.start()] + new + lines[at][word.end() :],
        }
    return json.dumps([{"do": "in", "to": where}, {"do": "base", "to": base}, edit]).encode()


def run(data: bytes, folder: Path, index: int) -> tuple[str, ...]:
    edits: list[dict[str, Any]] = json.loads(data)
    where = next((e["to"] for e in edits if e["do"] == "in"), "plans")
    edits = [e for e in edits if e["do"] != "in"]
    if where == "configs":
        return (where, *configs.run(json.dumps(edits).encode(), folder, index))
    if where == "presets":
        return (where, *presets.run(json.dumps(edits).encode(), folder, index))
    base = next((e["to"] for e in edits if e["do"] == "base"), presets.PLANS[0])
    text, files = presets.compiled(base)
    lines = text.splitlines()
    for edit in edits:
        if edit["do"] == "set":
            lines[edit["at"][-1]] = edit["to"]
    for name, content in files.items():
        (folder / name).write_text(content)
    return (where, *plans.run("\n".join([*lines, ""]).encode("utf-8", "surrogatepass"), folder, index))


def warm() -> None:
    presets.warm()
    plans.warm()


KIND = Kind(
    "hostile_names", ".json", "items", 17_000, make, run, warm,
    deep=("plans", "presets", "configs", "refused", "lowered for torch", "lowered for jax"),
)  # fmt: skip
