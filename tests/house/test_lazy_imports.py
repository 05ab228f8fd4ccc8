"""`import planc` and `planc check` stay light: no framework, no networkx. Asked of a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "jax", "jaxlib", "optax", "numpy", "networkx"}

CHECK = f"""
import planc
report = planc.check({str(ROOT / "plans/llama3_70b_h100.plan")!r})
assert report.to_json()["step"]["time_s"] > 0
"""


def heavy_modules(code: str) -> set[str]:
    """Which of the heavy libraries are loaded in a fresh interpreter after it has run `code`."""
    ask = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return HEAVY & set(json.loads(done.stdout.splitlines()[-1]))


def test_import_planc_is_light() -> None:
    assert heavy_modules("import planc; planc.check; planc.lower; planc.Program") == set()


def test_check_is_light() -> None:
    assert heavy_modules(CHECK) == set()


@pytest.mark.parametrize(
    ("plan", "target"), [("llama3_70b_h100", "cuda"), ("llama3_70b_v5p", "xla")], ids=["cuda", "xla"]
)
def test_lower_is_light(plan: str, target: str) -> None:
    assert heavy_modules(f"import planc; planc.lower('plans/{plan}.plan', {target!r}).text") == set()


@pytest.mark.parametrize("module", sorted(HEAVY - {"jax", "torch"}))
def test_the_tests_above_can_fail(module: str) -> None:
    assert module in heavy_modules(f"{CHECK}\nimport {module}")


def test_torch_and_jax_would_be_seen() -> None:
    """Not really imported (seconds): a stand-in of that name is enough to be found."""
    stand_in = "import sys; sys.modules['torch'] = sys.modules['jax'] = sys"
    assert heavy_modules(stand_in) == {"torch", "jax"}
