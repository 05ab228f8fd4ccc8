"""Tests that need the environment of the torch_xla runtime are skipped, with the reason, where it is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-torch-xla" / "bin" / "python"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not PYTHON.exists():
        for item in items:
            if item.get_closest_marker("torch_xla"):
                item.add_marker(pytest.mark.skip(reason="torch_xla wants an environment of its own: make torch-xla"))
