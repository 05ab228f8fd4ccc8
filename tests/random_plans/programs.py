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
TYPES = {
    "jax": ("--strict", "--allow-untyped-calls", "--no-warn-return-any", "--no-warn-unused-ignores"),
    "torch": tuple(
        f"--disable-error-code={code}"
        for code in (
            *("arg-type", "assignment", "attr-defined", "call-overload", "operator", "union-attr", "var-annotated"),
            *("import-not-found", "import-untyped"),
        )
    ),
}
"""Options of mypy. JAX has functions without types. To torch any attribute of a module may be a tensor, which is
neither called nor has a module's attributes; names, their definitions and the number of arguments are judged."""
UNCOUNTED = ("_part_gradients", "attend_part_backward")
"""Functions that are called with two starred tuples, whose lengths mypy does not count."""


def keep(texts: dict[str, str], seed: int, folder: Path) -> None:
    """Write the programs of a seed, by runtime, into a folder for `linted`."""
    for runtime, text in texts.items():
        (folder / runtime).mkdir(parents=True, exist_ok=True)
        (folder / runtime / f"plan_{seed}.py").write_text(text)


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


def linted(folder: Path, *, typed: bool = False) -> list[str]:
    """Lines of ruff about all programs in a folder, RUNTIME/NAME.py, and of mypy if they are to be `typed`."""
    commands: list[list[str]] = []
    for part in sorted(folder.iterdir()):
        width = ["--isolated", "--quiet", f"--line-length={WIDTHS[part.name]}", str(part)]
        commands += [["ruff", "format", "--diff", *width]]
        commands += [["ruff", "check", "--output-format=concise", f"--select={RULES}", *width]]
        if typed:
            options = ["--config-file=", "--no-error-summary", "--hide-error-context", "--follow-imports=silent"]
            cache = f"--cache-dir={ROOT / '.mypy_cache' / 'programs'}"
            commands += [["mypy", *options, cache, *TYPES.get(part.name, TYPES["torch"]), str(part)]]
    found: list[str] = []
    for command in commands:
        done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, check=False, cwd=ROOT)
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        assert bool(said) == bool(done.returncode), (command[:3], done.returncode, said[:3])
        found += [line for line in said if not any(f'"{name}"' in line for name in UNCOUNTED) and ": note:" not in line]
    return found
