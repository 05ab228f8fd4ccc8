"""Tests that need the environment of the torch_xla runtime are skipped, with the reason, where it is not there."""

from __future__ import annotations

import pytest

from tests.launches import TORCH_XLA


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not TORCH_XLA.exists():
        for item in items:
            if item.get_closest_marker("torch_xla"):
                item.add_marker(pytest.mark.skip(reason="torch_xla wants an environment of its own: make torch-xla"))
