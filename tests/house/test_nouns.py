"""The nouns of ARCHITECTURE.md exist, and each is made in one place."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
from collections import defaultdict
from collections.abc import Callable
from functools import cache

import pytest

from planc.checks import check_plan, judge_plan
from planc.compare.diff import diff
from planc.costing.costed import CostedPlan, cost_plan
from planc.driver import load
from planc.ir.backend import refusals
from planc.ir.checked import CheckedPlan
from planc.ir.plan import Plan
from planc.ir.sharding import Sharded
from planc.language.build import build_plan
from planc.lowering import lower_plan
from planc.sharding.propagate import propagate
from planc.syntax import Tree
from tests.house.test_floors import ROOT, source_files

MADE_AGAIN = {("Plan", "planc/ir/plan.py"): "`Plan.resized`: a search varies the mesh, the batch and the split"}
"""Further places that construct a noun, and why."""
ASSUMED = {
    "backends/cuda/audit/run.py": "a plan that has passed, with fewer data-parallel ranks than its cluster has devices",
    "planc/checks/recost.py": "an edit of a plan that has passed: a fix costs what it proposes",
    "planc/driver/serving.py": "a generator's layout: `layout_findings` runs the rules that hold for one",
    "planc/searching/lower_bounds.py": "a layout of a space: `Constraints` runs the rules, cached by mesh and by batch",
}
"""The files that call `assume_checked`, and what holds the rules there."""


def nouns() -> dict[str, str]:
    """Noun to the file that makes it, from the table of ARCHITECTURE.md."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    return dict(re.findall(r"^\| `(\w+)` \| `\w+` \| `([\w/.]+)` \|$", text, re.MULTILINE))


@cache
def called(text: str) -> frozenset[str]:
    """Names of the functions and classes that a file calls."""
    functions = [node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return frozenset(getattr(f, "id", getattr(f, "attr", "")) for f in functions)


def makers(files: dict[str, str], noun: str) -> set[str]:
    return {path for path, text in files.items() if noun in called(text)}


def test_the_picture_names_the_nouns_of_the_table() -> None:
    """The indented lines of ARCHITECTURE.md: nouns, and the functions between them."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    picture = "".join(line for line in text.splitlines(keepends=True) if line.startswith("    "))
    assert sorted(re.findall(r"\b[A-Z]\w+", picture)) == sorted(nouns())
    table = re.findall(r"^\| `\w+` \| `(\w+)` \| `[\w/.]+` \|$", text, re.MULTILINE)
    assert set(re.findall(r"\b[a-z]+(?:_[a-z]+)?\b", picture)) - {"text", "v"} == {*table} - {"check"} | {"examine"}


@pytest.mark.parametrize("noun", nouns())
def test_a_noun_is_made_in_one_place(noun: str) -> None:
    allowed = {nouns()[noun], *(path for name, path in MADE_AGAIN if name == noun)}
    assert nouns()[noun] in makers(source_files(ROOT), noun) <= allowed


def test_a_second_maker_would_be_found() -> None:
    files = source_files(ROOT) | {"planc/searching/space.py": "x = CheckedPlan(plan)"}
    assert makers(files, "CheckedPlan") == {nouns()["CheckedPlan"], "planc/searching/space.py"}


def test_plans_are_assumed_checked_in_few_places() -> None:
    assert makers(source_files(ROOT), "assume_checked") == set(ASSUMED)


@pytest.mark.parametrize(
    ("function", "asks_for"),
    [
        (build_plan, Tree),
        (check_plan, Plan),
        (propagate, CheckedPlan),
        (refusals, Sharded),
        (lower_plan, CheckedPlan),
        (cost_plan, Sharded),
        (judge_plan, CostedPlan),
        (diff, CostedPlan),
    ],
)
def test_a_function_asks_for_the_noun_that_it_needs(function: Callable[..., object], asks_for: type) -> None:
    """mypy holds the callers to it."""
    first = next(iter(inspect.signature(function).parameters.values()))
    assert first.annotation == asks_for.__name__


def test_a_checked_plan_is_no_plan() -> None:
    """Else `dataclasses.replace` would make an unchecked plan pass for a checked one."""
    assert not issubclass(CheckedPlan, Plan)


def test_a_program_is_pickled_whatever_it_has_cached() -> None:
    """An audit sends it to processes that trace it."""
    program = lower_plan(check_plan(load(ROOT / "plans" / "tiny.plan")), "cuda")
    cost_plan(program.sharded)
    again = pickle.loads(pickle.dumps(program))
    assert (again.plan, again.text) == (program.plan, program.text)


def test_few_classes_of_different_files_share_a_name() -> None:
    """A reader who meets a class's name in two files takes them for one."""
    files: dict[str, set[str]] = defaultdict(set)
    for file, text in source_files(ROOT).items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                files[node.name].add(file)
    shared = {name: len(found) for name, found in files.items() if len(found) > 1}
    assert len(shared) <= 5, shared
