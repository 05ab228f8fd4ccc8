"""Imports of the trainer by the command line are light: frameworks belong to the workers."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = {"numpy", "torch", "jax", "tomlkit", "rich"}
FACE = """
import planc.lowering
from planc.trainer.preset import embed, load
from planc.trainer.receipt import crosscheck_text, receipt
from planc.trainer.run import launch, train, worker
import planc.ir.session
"""


def heavy_modules(code: str) -> set[str]:
    ask = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    return HEAVY & set(json.loads(out.stdout))


def test_the_trainers_face_is_light() -> None:
    assert heavy_modules(FACE) == set()


def test_the_test_above_can_fail() -> None:
    assert heavy_modules(f"{FACE}\nimport planc.trainer.data.stream") == {"numpy"}
