"""The worked numbers in docstrings of `planc.cost` are what the functions return."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module
from types import ModuleType

import pytest

from tests.plans import cluster_of

MODULES = [
    module
    for found in pkgutil.walk_packages(import_module("planc.cost").__path__, "planc.cost.")
    if (module := import_module(found.name)) and any(t.examples for t in doctest.DocTestFinder().find(module))
]
NODE = cluster_of("1 x h100_node")


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_worked_numbers(module: ModuleType) -> None:
    """`h100` is a chip, `h100_node` a node of eight."""
    result = doctest.testmod(module, extraglobs={"h100": NODE.chip, "h100_node": NODE})
    assert result.attempted and not result.failed


def test_formulas_have_worked_numbers() -> None:
    rooms = {module.__name__.split(".")[2] for module in MODULES}
    assert {"compute", "machine", "memory", "step"} <= rooms
