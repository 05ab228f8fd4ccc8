"""The worked numbers in docstrings are what the functions return: every `>>>` of the package is run.

The examples are read from the text of a module and run among its names, so that a decorator hides none. Some names
stand for a machine and a plan in all of them, at data-sheet rates, so that a refit changes no example; `planc.costing`
lists them.
"""

from __future__ import annotations

import ast
import doctest
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest

import planc
from planc.checks import assume_checked
from planc.costing.costed import cost_plan
from planc.costing.machine.topology import DeviceGroup, GroupLevel, Ring, at_peak, ring_group
from planc.driver import load
from planc.sharding.propagate import propagate
from tests.docstrings import ROOT, public_functions, source_files
from tests.plans import cluster_of

PLAN = "plans/llama3_70b_h100.plan"
PLAN_OF_SCANS = "plans/field/nemotron_3_nano_gb200.plan"
NVLINK = GroupLevel("nvlink", members=8, below=1, bytes_per_s=450e9, latency_s=1e-6)
LEAF = GroupLevel("leaf", members=4, below=8, bytes_per_s=50e9, latency_s=5e-6, network=True)
GROUPS = {
    "ring": ring_group(Ring(4, wrapped=True), link_bytes_per_s=50e9),
    "node": DeviceGroup(8, (NVLINK,), "nvlink"),
    "nodes": DeviceGroup(32, (NVLINK, LEAF), "leaf"),
}


def names_for(text: str) -> dict[str, Any]:
    """Values of the shared names that `text` holds."""
    held = set(re.findall(r"\w+", text))
    found: dict[str, Any] = {name: group for name, group in GROUPS.items() if name in held}
    if "torus" in held:
        found["torus"] = at_peak(cluster_of("1 x tpu_v5e(4x4)"))
    if held & {"h100", "h100_node"}:
        found["h100_node"] = at_peak(cluster_of("1 x h100_node"))
        found["h100"] = found["h100_node"].chip
    if held & {"plan", "sharded", "costed", "ops", "params"}:
        plan = load(ROOT / PLAN)
        found["plan"] = plan = replace(plan, cluster=at_peak(plan.cluster))
        found["sharded"] = sharded = propagate(assume_checked(plan))
        found["ops"] = {o.op.name: o for section in sharded.ops.values() for o in section}
        found["params"] = {p.param.name: p for p in sharded.params}
    if "mamba" in held:
        found["mamba"] = propagate(assume_checked(load(ROOT / PLAN_OF_SCANS)))
        found["scan"] = found["mamba"].op["mixer.scan"]
    if "costed" in held:
        found["costed"] = cost_plan(found["sharded"])
    return found


def examples_of(text: str, module: str) -> Iterator[doctest.DocTest]:
    """The examples of each docstring of a module's text, constants' and attributes' too."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(said))) if ">>> " in said:
                yield doctest.DocTestParser().get_doctest(said, {}, module, module, node.lineno)


EXAMPLES = [
    pytest.param(example, id=f"{example.name}:{example.lineno}")
    for path in source_files(ROOT)
    if ">>> " in (text := path.read_text())
    for example in examples_of(text, ".".join(path.relative_to(ROOT).with_suffix("").parts))
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_worked_numbers(example: doctest.DocTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert example.docstring is not None
    example.globs = {**vars(import_module(example.name)), **names_for(example.docstring)}
    result = doctest.DocTestRunner().run(example)
    assert result.attempted and not result.failed


def without_example(places: dict[str, list[str]]) -> list[tuple[str, str]]:
    """Those of these top-level functions and classes, by file, whose docstrings hold no example."""
    return [
        (place, node.name)
        for place, names in places.items()
        for node in ast.parse((ROOT / place).read_text()).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names
        if ">>> " not in (ast.get_docstring(node) or "")
    ]


def test_every_formula_has_a_worked_number() -> None:
    formulas: dict[str, list[str]] = {}
    for f in public_functions(ROOT):
        if f.place.startswith("planc/costing/") and f.returns_number:
            formulas.setdefault(f.place, []).append(f.name)
    assert len(formulas) > 10
    assert without_example(formulas) == []


def test_what_users_import_has_an_example() -> None:
    homes: dict[str, list[str]] = {}
    for name in planc.__all__:
        home = planc._HOMES[name].replace(".", "/")
        homes.setdefault(f"{home}/__init__.py" if (ROOT / home).is_dir() else f"{home}.py", []).append(name)
    assert without_example(homes) == []
