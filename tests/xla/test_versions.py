"""JAX 0.11 needs Python 3.12, which is not everywhere: its names and types are read in the unpacked wheels.

The wheels are fetched by `make ends`; without them the tests are skipped. Nothing of them is imported.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import jax
import pytest

from planc import lower
from planc.backends.xla.versions import JAX
from planc.checks import check_plan
from planc.ir.version import dotted
from planc.lowering import lower_plan
from tests.launches import VERSIONS
from tests.xla.cases import LAYOUTS, sharded
from tests.xla.moe_cases import MOE, moe_plan

ROOT = Path(__file__).resolve().parents[2]
WHEELS = VERSIONS / "jax-0.11"
needs_wheels = pytest.mark.skipif(
    not (WHEELS / ".ready").exists(), reason="the wheels of JAX 0.11 are not there: make ends, or make versions"
)


def test_a_program_says_which_jax_it_was_written_for_and_warns_on_another(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in JAX.versions:
        text = lower(ROOT / "plans/tiny.plan", "xla", version=dotted(version)).text
        assert f"Written by planc for JAX {dotted(version)} from tiny.plan" in text
        for runs, said in (("0.10.2", 0), ("0.11.2", 1)):
            monkeypatch.setattr(jax, "__version__", runs)
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                exec(compile(text, "tiny", "exec"), {"__name__": "tiny"})
            assert len(heard) == said
            if said:
                assert str(heard[0].message) == f"compiled for jax {dotted(version)} and never tried on 0.11.2"


def parsed(module: str) -> tuple[ast.Module, ...]:
    """The stub and the source of a module in the wheels, as far as it has them."""
    place = WHEELS.joinpath(*module.split("."))
    files = (place / "__init__.pyi", place / "__init__.py", place.with_suffix(".pyi"), place.with_suffix(".py"))
    return tuple(ast.parse(older_syntax(file.read_text())) for file in files if file.is_file())


def older_syntax(text: str) -> str:
    """A text of Python 3.12 as older Pythons parse it: `type X[T] = ...`, `def f[T](...)` without type parameters."""
    text = re.sub(r"(?m)^(\s*)type (\w+)(\[[^\]]*\])? =", r"\1\2 =", text)
    return re.sub(r"(?m)^(\s*(?:def|class) \w+)\[[^\]]*\]", r"\1", text)


@cache
def bound(module: str) -> frozenset[str]:
    """Names that a module of the wheels binds outside of functions and classes."""
    found: set[str] = set()
    for tree in parsed(module):
        nodes: list[ast.AST] = list(tree.body)
        while nodes:
            node = nodes.pop()
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
                continue
            if isinstance(node, ast.alias):
                found.add((node.asname or node.name).split(".")[0])
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            nodes += ast.iter_child_nodes(node)
    return frozenset(found)


@cache
def deprecated(module: str) -> frozenset[str]:
    """Names that a module gives with a warning, or no more: the keys of its table `_deprecations`."""
    tables = [
        node.value
        for tree in parsed(module)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and any(getattr(t, "id", "") == "_deprecations" for t in node.targets)
    ]
    return frozenset(
        str(k.value) for t in tables if isinstance(t, ast.Dict) for k in t.keys if isinstance(k, ast.Constant)
    )


def used(text: str) -> Iterator[str]:
    """Dotted names of jax that a Python text uses, through whatever it imports them as."""
    tree = ast.parse(text)
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {
                a.asname or a.name.split(".")[0]: a.name if a.asname else a.name.split(".")[0] for a in node.names
            }
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            known |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
            yield from (f"{node.module}.{a.name}" for a in node.names)
    for node in ast.walk(tree):
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names.insert(0, node.attr)
            node = node.value
        if names and isinstance(node, ast.Name) and node.id in known:
            yield ".".join([known[node.id], *names])


def missing(name: str) -> str:
    """The part of a dotted name of jax that the wheels do not have, or have as deprecated; empty: all is there."""
    module, *rest = name.split(".")
    for part in rest:
        if part in deprecated(module):
            return f"{module}.{part} is deprecated"
        if not parsed(f"{module}.{part}"):
            return "" if part in bound(module) else f"{module} has no {part}"
        module = f"{module}.{part}"
    return ""


def programs() -> Iterator[tuple[str, str]]:
    """The committed programs and one of each tested layout, written for JAX 0.11, each with its name."""
    for path in sorted((ROOT / "plans/goldens").glob("*.xla.py")):
        yield path.name.partition(".")[0], path.read_text()
    for name in LAYOUTS:
        yield name, lower_plan(check_plan(sharded(name).plan), "xla", version=(0, 11)).text
    for name in MOE:
        yield f"moe_{name}", lower_plan(check_plan(moe_plan(name)), "xla", version=(0, 11)).text


def texts() -> Iterator[str]:
    """Every kind of text that meets JAX: planc's own code, and programs."""
    yield from (p.read_text() for p in sorted((ROOT / "backends/xla").rglob("*.py")))
    yield from (text for _, text in programs())


@needs_wheels
@pytest.mark.versions
@pytest.mark.long
def test_every_name_of_jax_is_there_in_0_11_and_none_is_deprecated() -> None:
    names = {name for text in texts() for name in used(text) if name.split(".")[0] == "jax"}
    assert {"jax.shard_map", "jax.lax.ppermute", "jax.sharding.AxisType", "jax.numpy.einsum"} <= names
    assert [why for name in sorted(names) if (why := missing(name))] == []


@needs_wheels
def test_a_name_that_is_gone_is_found() -> None:
    assert missing("jax.device_put_replicated") == "jax.device_put_replicated is deprecated"
    assert missing("jax.core.DropVar") == "jax.core.DropVar is deprecated"
    assert missing("jax.lax.all_gathered") == "jax.lax has no all_gathered"
    assert set(used("import jax.numpy as jnp\nfrom jax import lax\njnp.sum(lax.psum)")) == {
        "jax.numpy", "jax.lax", "jax.numpy.sum", "jax.lax.psum",
    }  # fmt: skip


@needs_wheels
@pytest.mark.versions
@pytest.mark.slow
def test_the_backend_and_the_programs_have_the_types_of_0_11(tmp_path: Path) -> None:
    """mypy as for Python 3.12, with the wheels in place of the JAX that is installed."""
    written = {tmp_path / f"program_{name}.py": text for name, text in programs()}
    for path, text in written.items():
        path.write_text(text)
    planted = tmp_path / "program_planted.py"
    planted.write_text("import jax\n\njax.lax.psum_of_nothing(1)\njax.make_mesh(axes=3)\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", "--python-version", "3.12", "--follow-imports", "silent",
         "--allow-untyped-calls", "--no-warn-return-any", "--no-warn-unused-ignores",  # JAX has functions without types
         "--cache-dir", str(ROOT / ".mypy_cache" / "jax-0.11"), "backends/xla", *map(str, written), str(planted)],
        capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, "MYPYPATH": f"{WHEELS}:{ROOT}/docs"},
    )  # fmt: skip
    ours = [line for line in done.stdout.splitlines() if line.startswith(("backends/", "planc/", str(tmp_path)))]
    found = [line for line in ours if line.startswith(str(planted))]
    assert {line.split(":")[1] for line in found} == {"3", "4"}, done.stdout[-2000:]
    assert [line for line in ours if line not in found] == []
    assert "Traceback" not in done.stderr and "usage:" not in done.stderr, done.stderr[-2000:]
