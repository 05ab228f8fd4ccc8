"""A lowered program runs: each name is defined once, and neither ruff nor mypy has anything to say."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
WIDTHS = {"torch": 120, "jax": 110, "torch_xla": 110}
"""Columns that programs of a runtime are written for."""
RULES = "E,F,I,UP,B,SIM,C4,RET,PIE"
STRICT = ("--strict", "--allow-untyped-calls", "--no-warn-return-any", "--no-warn-unused-ignores")
"""Options of mypy for JAX, which has functions without types."""
LOOSE = ("arg-type", "assignment", "attr-defined", "call-overload", "operator", "union-attr", "var-annotated")
"""Codes that mypy is not asked for of torch, to which any attribute of a module may be a tensor, which is neither
called nor has a module's attributes. Names, their definitions and the number of arguments are judged."""
NOT_HERE = ("import-not-found", "import-untyped")
"""Codes of frameworks that are not installed, or have no types."""


def keep(texts: dict[str, str], seed: int, folder: Path) -> None:
    """Write the programs of a seed, by runtime, into a folder for `linted` and `typed`."""
    for runtime, text in texts.items():
        (folder / runtime).mkdir(parents=True, exist_ok=True)
        (folder / runtime / f"{runtime}_{seed}.py").write_text(text)


def defined_twice(text: str) -> list[str]:
    """Names that some scope of a program defines or imports more than once; constants of the file among them."""
    tree = ast.parse(text)
    scopes = [n for n in ast.walk(tree) if isinstance(n, ast.Module | ast.FunctionDef | ast.ClassDef)]
    return [
        f"{name} in {getattr(scope, 'name', 'the file')}"
        for scope in scopes
        for name, n in Counter(_defined(scope)).items()
        if n > 1
    ]


def unknown_axes(text: str) -> list[str]:
    """Axes in the specs (`P(...)`) of a JAX program that its mesh does not have."""
    tree = ast.parse(text)
    assigned = {
        n.targets[0].id: n.value for n in tree.body if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)
    }
    mesh = ast.literal_eval(assigned["MESH"])
    specs = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "P"]
    named = [
        n.value for spec in specs for n in ast.walk(spec) if isinstance(n, ast.Constant) and isinstance(n.value, str)
    ]
    return sorted(set(named) - set(mesh))


def _defined(scope: ast.Module | ast.FunctionDef | ast.ClassDef) -> Iterator[str]:
    nodes: list[ast.AST] = [*scope.body]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.alias):
            yield node.asname or node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and isinstance(scope, ast.Module):
            yield node.id
        if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda | ast.comprehension):
            nodes += ast.iter_child_nodes(node)


def linted(folder: Path) -> list[str]:
    """Lines of ruff about all programs in a folder, RUNTIME/NAME.py."""
    found: list[str] = []
    for part in sorted(folder.iterdir()):
        width = ["--isolated", "--quiet", f"--line-length={WIDTHS[part.name]}", str(part)]
        found += _said("ruff", "format", "--diff", *width)
        found += _said("ruff", "check", "--output-format=concise", f"--select={RULES}", *width)
    return found


def typed(folder: Path) -> list[str]:
    """Lines of mypy about all programs in a folder, each as a user of its framework would ask."""
    return [
        line
        for part in sorted(folder.iterdir())
        for line in _mypy(part, "silent", *(STRICT if part.name == "jax" else _without(*LOOSE)))
    ]


def typed_alone(folder: Path) -> list[str]:
    """Lines of mypy about all programs in a folder by themselves: frameworks take long to read, and are left out."""
    return _mypy(folder, "skip", *_without("var-annotated"))


def _mypy(folder: Path, imports: str, *options: str) -> list[str]:
    common = ["--config-file=", "--no-error-summary", "--hide-error-context", f"--follow-imports={imports}"]
    cache = f"--cache-dir={ROOT / '.mypy_cache' / f'programs_{imports}'}"
    said = _said("mypy", *common, cache, *_without(*NOT_HERE), *options, str(folder))
    return [line for line in said if ": note:" not in line]


def _without(*codes: str) -> list[str]:
    return [f"--disable-error-code={code}" for code in codes]


def _said(*command: str) -> list[str]:
    """The lines that a tool says of what it finds; nothing where it finds nothing."""
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, check=False, cwd=ROOT)
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    assert bool(said) == bool(done.returncode), (command[:3], done.returncode, said[:3])
    return said
